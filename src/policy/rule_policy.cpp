// Implements rule_policy.h.
#include "policy/rule_policy.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/text.h"
#include "policy/lifetime.h"

namespace optimus {
namespace {

constexpr double kArrivalWindow = 3600;  // seconds over which arrivals are counted
// A less expensive response is preferred if it reaches at least this fraction of the largest gain.
constexpr double kSufficient = 0.9;

// The number of devices that join or are lost together. Estimated as the smallest difference between the
// numbers of devices of the options.
int devices_of_node(const Situation& situation) {
  const int present_devices = situation.options.front().devices;
  int node_devices = std::numeric_limits<int>::max();
  for (const PlanOption& option : situation.options)
    if (can_run(option) && option.devices != present_devices)
      node_devices = std::min(node_devices, std::abs(option.devices - present_devices));
  return node_devices;
}

// Expected seconds until lost or joining devices force another plan change. An option that uses additional
// devices is useful until one of them is lost or the same number of devices has joined. Any other option is
// useful until the next loss.
double seconds_until_membership_change(const Situation& situation, const PlanOption& option, int node,
                                       double max_seconds) {
  constexpr double kMinSeconds = 600;  // seconds; arrivals within a shorter time do not show their rate
  const int present_devices = situation.options.front().devices,
            num_additional = option.devices - present_devices;
  const double losses = situation.losses_per_device_second;
  const auto expected_wait = [&](double rate) {
    return rate > 0 ? std::min(max_seconds, 1 / rate) : max_seconds;
  };
  if (num_additional <= 0) return expected_wait(losses * std::max(1, present_devices));
  const double arrivals =
      situation.arrivals_last_hour / std::clamp(situation.elapsed_seconds, kMinSeconds, kArrivalWindow);
  return std::min(expected_wait(losses * node), expected_wait(arrivals * node / num_additional));
}

// Expected seconds until a condition ends, the membership changes or the run ends.
double remaining_seconds_of(const Policy& policy, const Situation& situation, const PlanOption& option,
                            int node) {
  double remainder =
      std::min(seconds_until_membership_change(situation, option, node, policy.horizon), situation.run_left);
  for (const OngoingCondition& condition : situation.conditions)
    remainder = std::min(remainder, expected_remaining_seconds(usual_lifetime(condition.cause), condition.age,
                                                               policy.horizon));
  return remainder;
}

// The cost of trying an option whose step time turns out to be one standard deviation longer: the pauses of
// two switches, and slower steps until the step time has been measured.
double cost_of_attempt(const Policy& policy, const Situation& situation, const PlanOption& option) {
  return 2 * option.pause_seconds + option.uncertainty * settling_seconds(policy, situation);
}

// The fastest earlier plan that is worth the pause of a return. Returns nullopt if there is none, or if the
// last switch reached its gain.
std::optional<std::size_t> plan_to_return_to(const Policy& policy, const Situation& situation) {
  if (!has_missed_gain(situation.predicted_gain, situation.measured_gain) ||
      *situation.measured_gain >= policy.min_gain)
    return std::nullopt;
  const double current_seconds = situation.options.front().step_seconds;
  std::size_t fastest = 0;
  for (std::size_t i = 1; i < situation.options.size(); ++i) {
    const PlanOption& plan_option = situation.options[i];
    if (plan_option.response == Response::resume && can_run(plan_option) &&
        plan_option.step_seconds < situation.options[fastest].step_seconds &&
        situation.run_left * (1 - plan_option.step_seconds / current_seconds) > plan_option.pause_seconds)
      fastest = i;
  }
  return fastest > 0 ? std::optional(fastest) : std::nullopt;
}

// The net gain of an option in seconds, or 0 if the option is not worth its costs.
double worth_of(const Policy& policy, const Situation& situation, std::size_t i, int node) {
  const PlanOption& option = situation.options[i];
  const double gain =
      1 - lasting_seconds(situation, option) / lasting_seconds(situation, situation.options.front());
  if (!can_run(option) || gain < policy.min_gain) return 0;
  // An option that fits the exploration budget is rated by its expected gain. Any other option is rated by a
  // cautious estimate of its gain.
  const bool is_within_budget = cost_of_attempt(policy, situation, option) <= situation.exploration_left;
  const double worth = net_gain(situation, i, remaining_seconds_of(policy, situation, option, node),
                                is_within_budget ? 0 : policy.caution);
  return worth < (policy.payback - 1) * option.pause_seconds ? 0 : worth;
}

// The least expensive response with a sufficient gain. If several are equally expensive, the one with the
// largest gain.
std::size_t least_expensive(const Situation& situation, const std::vector<double>& gains,
                            double largest_gain) {
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < gains.size(); ++i) {
    if (gains[i] < kSufficient * largest_gain) continue;
    const Response response = situation.options[i].response,
                   chosen_response = situation.options[chosen].response;
    if (chosen == 0 || response < chosen_response ||
        (response == chosen_response && gains[i] > gains[chosen]))
      chosen = i;
  }
  return chosen;
}

}  // namespace

Choice fastest_lasting(const Situation& situation) {
  const auto best = best_by(situation, [&](const PlanOption& option, std::size_t) {
    return 1 / lasting_seconds(situation, option);
  });
  if (!best) return {0, 0, "no plan can run"};
  return {*best, 0, "fastest plan, including the cost of steps that losses undo"};
}

double net_gain(const Situation& situation, std::size_t i, double remaining_seconds, double caution) {
  const PlanOption &current_option = situation.options.front(), &option = situation.options[i];
  const double pessimistic_seconds =
      lasting_seconds(situation, option) * std::exp(caution * option.uncertainty);
  const double saved =
      remaining_seconds * (1 - pessimistic_seconds / lasting_seconds(situation, current_option));
  const bool will_return =
      !situation.conditions.empty() && option.usual_seconds > current_option.usual_seconds * 1.005;
  return saved - option.pause_seconds * (will_return ? 2 : 1);
}

Choice rule_choice(const Policy& policy, const Situation& situation) {
  if (!can_run(situation.options.front())) return fastest_lasting(situation);
  if (const auto earlier = plan_to_return_to(policy, situation)) return {*earlier, 0, kGainMissed};
  if (situation.since_switch < settling_seconds(policy, situation))
    return {0, 0, "too soon after the last switch"};
  const int node = devices_of_node(situation);
  std::vector<double> gains(situation.options.size(), 0);
  double maximum = 0;
  for (std::size_t i = 1; i < gains.size(); ++i) {
    gains[i] = worth_of(policy, situation, i, node);
    maximum = std::max(maximum, gains[i]);
  }
  if (maximum <= 0) return {0, 0, "no plan is worth the pause"};
  const std::size_t chosen = least_expensive(situation, gains, maximum);
  const double remainder = remaining_seconds_of(policy, situation, situation.options[chosen], node);
  return {chosen, gains[chosen], fmt::format("pays off within {}", optimus::text(Seconds(remainder)))};
}

}  // namespace optimus
