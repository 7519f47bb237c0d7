// Implements decide.h: the simple policies, and choose(), which dispatches to all policies.
#include "policy/decide.h"

#include <algorithm>

#include "base/error.h"
#include "policy/learned_policy.h"
#include "policy/rule_policy.h"

namespace optimus {
namespace {

constexpr double kNoticeableGain = 0.01;  // fraction of the step time

double speed_of(const PlanOption& option) { return can_run(option) ? 1 / option.step_seconds : 0; }

// The fraction of the current step time that the option saves.
double gain_of(const Situation& situation, std::size_t option) {
  const double current_seconds = situation.options.front().step_seconds;
  return current_seconds > 0 ? 1 - situation.options[option].step_seconds / current_seconds : 1;
}

Choice fastest(const Situation& situation) {
  const auto best =
      best_by(situation, [](const PlanOption& option, std::size_t) { return speed_of(option); });
  if (!best) return {0, 0, "no plan can run"};
  return {*best, 0, "fastest plan"};
}

Choice by_threshold(const Policy& policy, const Situation& situation) {
  const Choice best = fastest(situation);
  if (!can_run(situation.options.front())) return best;
  const bool is_slow = std::any_of(
      situation.conditions.begin(), situation.conditions.end(),
      [&](const OngoingCondition& condition) { return condition.factor >= policy.condition_threshold; });
  const double gain = gain_of(situation, best.option);
  if (gain >= policy.threshold || (is_slow && gain > kNoticeableGain)) return best;
  return {0, 0, "the gain is too small"};
}

// Chooses the option that completes the most steps within the lookahead window. The pause of the switch and
// the time that device losses are expected to cost are subtracted from the window.
Choice by_lookahead(const Policy& policy, const Situation& situation) {
  const double window = policy.lookahead_seconds;
  const auto value = [&](const PlanOption& option, std::size_t i) {
    const double losses = situation.losses_per_device_second * option.devices * window;
    const double lost = (i == 0 ? 0 : option.pause_seconds) +
                        std::min(window, losses * (situation.recovery_seconds +
                                                   option.step_seconds * (1 + option.undone_steps)));
    return std::max(0.0, window - lost) * speed_of(option);
  };
  const auto best = best_by(situation, value);
  if (!best) return {0, 0, "no plan can run"};
  return {*best, 0, "most work in the lookahead window"};
}

Choice by_malleus(const Policy& policy, const Situation& situation) {
  if (!can_run(situation.options.front())) return fastest(situation);
  bool has_straggler = false;
  for (const OngoingCondition& condition : situation.conditions)
    has_straggler |= (condition.cause == Cause::device || condition.cause == Cause::host) &&
                     condition.factor >= policy.condition_threshold;
  const Choice best = fastest(situation);
  // After the conditions have ended, the policy returns to the fastest plan.
  const bool has_ended = situation.conditions.empty() && gain_of(situation, best.option) > kNoticeableGain;
  return has_straggler || has_ended ? best : Choice{0, 0, "no straggler"};
}

Choice by_oracle(const Situation& situation) {
  if (!can_run(situation.options.front())) return fastest_lasting(situation);
  const double remainder = std::min(situation.true_remaining_seconds.value_or(0), situation.run_left);
  const auto best = best_by(situation, [&](const PlanOption&, std::size_t i) {
    return i == 0 ? 0 : net_gain(situation, i, remainder, 0);
  });
  return {best.value_or(0), 0, "hindsight"};
}

}  // namespace

Choice choose(const Policy& policy, const Situation& situation) {
  ensure(!situation.options.empty(), "a situation needs at least one option");
  switch (policy.kind) {
    case PolicyKind::never:
      return {0, 0, "the policy never changes the plan"};
    case PolicyKind::always_best:
      return fastest(situation);
    case PolicyKind::threshold:
      return by_threshold(policy, situation);
    case PolicyKind::lookahead:
      return by_lookahead(policy, situation);
    case PolicyKind::malleus:
      return by_malleus(policy, situation);
    case PolicyKind::rule:
      return rule_choice(policy, situation);
    case PolicyKind::learned:
      return learned_choice(policy, situation, [&] { return rule_choice(policy, situation); });
    case PolicyKind::oracle:
      return by_oracle(situation);
  }
  return {};
}

}  // namespace optimus
