// The rule policy: compares the costs of each option with its gain over the expected duration of the
// conditions. No side effects.
#pragma once

#include <optional>

#include "policy/policy.h"

namespace optimus {

inline bool can_run(const PlanOption& option) { return option.step_seconds > 0; }

// Returns the runnable option with the largest value, or the first of them if several are equal. Returns
// nullopt if no option can run. `value` is called with (option, index).
template <typename Value>
std::optional<std::size_t> best_by(const Situation& situation, Value value) {
  std::optional<std::size_t> best;
  double maximum = 0;
  for (std::size_t i = 0; i < situation.options.size(); ++i) {
    if (!can_run(situation.options[i])) continue;
    const double current = value(situation.options[i], i);
    if (!best || current > maximum) best = i, maximum = current;
  }
  return best;
}

// Chooses the runnable option with the smallest lasting_seconds().
Choice fastest_lasting(const Situation& situation);

// The seconds that an option gains within `remaining_seconds`. This is the saved time minus the pause and the
// time of steps that losses undo. If the option is slower without the conditions, a second pause to switch
// back is subtracted. `caution` is the number of standard deviations by which the predicted step time is
// increased.
double net_gain(const Situation& situation, std::size_t option, double remaining_seconds, double caution);

Choice rule_choice(const Policy& policy, const Situation& situation);

}  // namespace optimus
