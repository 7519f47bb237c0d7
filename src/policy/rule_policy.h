// The rule policy: compares what each option gains over the expected duration of the conditions with what it
// costs. Pure.
#pragma once

#include <optional>

#include "policy/policy.h"

namespace optimus {

inline bool can_run(const PlanOption& option) { return option.step_seconds > 0; }

// The runnable option with the largest value; the first one of equal ones. Empty if no option can run. value:
// (option, index).
template <typename Value>
std::optional<std::size_t> best_by(const Situation& situation, Value value) {
  std::optional<std::size_t> best;
  double most = 0;
  for (std::size_t i = 0; i < situation.options.size(); ++i) {
    if (!can_run(situation.options[i])) continue;
    const double own = value(situation.options[i], i);
    if (!best || own > most) best = i, most = own;
  }
  return best;
}

// The runnable option with the least lasting_seconds().
Choice fastest_lasting(const Situation& situation);

// Seconds that an option gains within `remaining_seconds`, minus the pause, minus the pause of the way back
// if the option is slower without the conditions, minus what losses undo. caution: standard deviations of
// doubt to subtract.
double net_gain(const Situation& situation, std::size_t option, double remaining_seconds, double caution);

Choice rule_choice(const Policy& policy, const Situation& situation);

}  // namespace optimus
