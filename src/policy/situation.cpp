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

namespace {

constexpr std::array<const char*, 6> kResponses = {
    "stay", "share micro-batches", "move stage boundaries", "another plan", "drop devices", "earlier plan"};
// Words in decisions of version 0.2 and earlier.
constexpr std::array<std::pair<const char*, Response>, 2> kOldResponses = {
    {{"cut stages anew", Response::recut}, {"back", Response::resume}}};

}  // namespace

std::string text(Response response) { return kResponses[static_cast<std::size_t>(response)]; }

std::optional<Response> find_response(const std::string& word) {
  for (std::size_t i = 0; i < kResponses.size(); ++i)
    if (word == kResponses[i]) return static_cast<Response>(i);
  for (const auto& [old_word, response] : kOldResponses)
    if (word == old_word) return response;
  return std::nullopt;
}

}  // namespace optimus
