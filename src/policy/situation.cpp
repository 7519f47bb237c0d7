// Implements situation.h.
#include "policy/situation.h"

#include <algorithm>
#include <array>

namespace optimus {

bool has_missed_gain(std::optional<double> predicted_gain, std::optional<double> measured_gain) {
  constexpr double kMinFraction = 0.25;
  return predicted_gain && measured_gain && *predicted_gain > 0 &&
         *measured_gain < kMinFraction * *predicted_gain;
}

double undone_part(const Situation& situation, const PlanOption& option) {
  constexpr double kMaxPart = 0.9;
  return std::min(kMaxPart, situation.losses_per_device_second * std::max(1, option.devices) *
                                option.undone_steps * option.step_seconds);
}

double lasting_seconds(const Situation& situation, const PlanOption& option) {
  return option.step_seconds / (1 - undone_part(situation, option));
}

std::string text(Response response) {
  constexpr std::array<const char*, 6> kNames = {"stay",         "share micro-batches", "cut stages anew",
                                                 "another plan", "drop devices",        "back"};
  return kNames[static_cast<std::size_t>(response)];
}

}  // namespace optimus
