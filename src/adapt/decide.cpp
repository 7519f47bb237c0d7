// See decide.h.
#include "adapt/decide.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "adapt/learned_policy.h"
#include "adapt/lifetime.h"
#include "adapt/membership_history.h"
#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::array<const char*, 8> kPolicies = {"never",   "always-best", "threshold", "lookahead",
                                                  "malleus", "rule",        "learned",   "oracle"};

bool can_run(const PlanOption& option) { return option.step_seconds > 0; }

// The option with the most of `value`, of those that can run; the first of equals. Nothing where none can.
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

double speed_of(const PlanOption& option) { return can_run(option) ? 1 / option.step_seconds : 0; }

// Part of the step that is saved.
double gain_of(const Situation& situation, std::size_t option) {
  const double now = situation.options.front().step_seconds;
  return now > 0 ? 1 - situation.options[option].step_seconds / now : 1;
}

Choice quickest(const Situation& situation) {
  const auto best =
      best_by(situation, [](const PlanOption& option, std::size_t) { return speed_of(option); });
  if (!best) return {0, 0, "nothing can run"};
  return {*best, 0, "the quickest"};
}

// By steps that stay done.
Choice most_lasting(const Situation& situation) {
  const auto best = best_by(situation, [&](const PlanOption& option, std::size_t) {
    return 1 / lasting_seconds(situation, option);
  });
  if (!best) return {0, 0, "nothing can run"};
  return {*best, 0, "the quickest of steps that stay done"};
}

Choice by_threshold(const Policy& policy, const Situation& situation) {
  const Choice best = quickest(situation);
  if (!can_run(situation.options.front())) return best;
  const bool is_slow =
      std::any_of(situation.conditions.begin(), situation.conditions.end(),
                  [&](const OngoingCondition& one) { return one.factor >= policy.condition_threshold; });
  const double gain = gain_of(situation, best.option);
  if (gain >= policy.threshold || (is_slow && gain > 0.01)) return best;
  return {0, 0, "too little to gain"};
}

// Work in the window, in seconds of the present speed: pauses are lost, and so is what losses of its devices will cost.
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
  if (!best) return {0, 0, "nothing can run"};
  return {*best, 0, "most work in the window"};
}

Choice by_malleus(const Policy& policy, const Situation& situation) {
  if (!can_run(situation.options.front())) return quickest(situation);
  bool has_straggler = false;
  for (const OngoingCondition& one : situation.conditions)
    has_straggler |=
        (one.cause == Cause::device || one.cause == Cause::host) && one.factor >= policy.condition_threshold;
  const Choice best = quickest(situation);
  // Back to normal it goes back to the even plan.
  const bool is_over = situation.conditions.empty() && gain_of(situation, best.option) > 0.01;
  return has_straggler || is_over ? best : Choice{0, 0, "no straggler"};
}

// Devices that come or go together: as few as options differ by.
int devices_of_node(const Situation& situation) {
  const int now = situation.options.front().devices;
  int node = std::numeric_limits<int>::max();
  for (const PlanOption& option : situation.options)
    if (can_run(option) && option.devices != now) node = std::min(node, std::abs(option.devices - now));
  return node;
}

// What more devices bring lasts as long as one of them does, or until as many have come again, for then there is another change anyway;
// what else an option brings, until the next device is lost.
double until_lost_or_more(const Situation& situation, const PlanOption& option, int node, double longest) {
  constexpr double kShortest = 600;  // seconds that tell how often somebody comes
  const int now = situation.options.front().devices, more = option.devices - now;
  const double losses = situation.losses_per_device_second;
  const auto after = [&](double rate) { return rate > 0 ? std::min(longest, 1 / rate) : longest; };
  if (more <= 0) return after(losses * std::max(1, now));
  const double arrivals =
      situation.arrivals_last_hour / std::clamp(situation.now, kShortest, LastHour::kHour);
  return std::min(after(losses * node), after(arrivals * node / more));
}

// How long things will stay as they are.
double rest_of(const Policy& policy, const Situation& situation, const PlanOption& option, int node) {
  double rest = std::min(until_lost_or_more(situation, option, node, policy.horizon), situation.run_left);
  for (const OngoingCondition& one : situation.conditions)
    rest = std::min(rest, expected_rest(usual_lifetime(one.cause), one.age, policy.horizon));
  return rest;
}

// Seconds gained by an option until the condition ends, less the pause, the way back where the option is worse without the
// condition, and what losses undo.
double net_gain(const Situation& situation, std::size_t i, double rest, double caution) {
  const PlanOption &now = situation.options.front(), &option = situation.options[i];
  const double doubted = lasting_seconds(situation, option) * std::exp(caution * option.doubt);
  const double saved = rest * (1 - doubted / lasting_seconds(situation, now));
  const bool goes_back = !situation.conditions.empty() && option.usual_seconds > now.usual_seconds * 1.005;
  return saved - option.pause_seconds * (goes_back ? 2 : 1);
}

// A cheaper answer that gains this part of the best is preferred.
constexpr double kSufficient = 0.9;

// What trying it costs where it is as much worse as is doubted: there and back, and the steps until that shows.
double price_of_try(const Policy& policy, const Situation& situation, const PlanOption& option) {
  return 2 * option.pause_seconds + option.doubt * settling_seconds(policy, situation);
}

Choice by_rule(const Policy& policy, const Situation& situation) {
  const PlanOption& now = situation.options.front();
  if (!can_run(now)) return most_lasting(situation);
  if (has_disappointed(situation.predicted_gain, situation.realised_gain) &&
      *situation.realised_gain < policy.least_gain) {
    std::size_t quickest = 0;
    for (std::size_t i = 1; i < situation.options.size(); ++i) {
      const PlanOption& one = situation.options[i];
      if (one.response == Response::resume && can_run(one) &&
          one.step_seconds < situation.options[quickest].step_seconds &&
          situation.run_left * (1 - one.step_seconds / now.step_seconds) > one.pause_seconds)
        quickest = i;
    }
    if (quickest > 0) return {quickest, 0, kGainDidNotCome};
  }
  if (situation.since_switch < settling_seconds(policy, situation)) return {0, 0, "just switched"};
  const int node = devices_of_node(situation);
  std::vector<double> gains(situation.options.size(), 0);
  double most = 0;
  for (std::size_t i = 1; i < gains.size(); ++i) {
    const PlanOption& option = situation.options[i];
    const double gain = 1 - lasting_seconds(situation, option) / lasting_seconds(situation, now);
    if (!can_run(option) || gain < policy.least_gain) continue;
    // A try within the budget is judged by what is expected; else by what is nearly sure.
    const bool is_cheap = price_of_try(policy, situation, option) <= situation.exploration_left;
    gains[i] =
        net_gain(situation, i, rest_of(policy, situation, option, node), is_cheap ? 0 : policy.caution);
    if (gains[i] < (policy.payback - 1) * option.pause_seconds) gains[i] = 0;
    most = std::max(most, gains[i]);
  }
  if (most <= 0) return {0, 0, "nothing pays"};
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < gains.size(); ++i) {
    if (gains[i] < kSufficient * most) continue;
    const bool is_cheaper =
        chosen == 0 || situation.options[i].response < situation.options[chosen].response ||
        (situation.options[i].response == situation.options[chosen].response && gains[i] > gains[chosen]);
    if (is_cheaper) chosen = i;
  }
  const double rest = rest_of(policy, situation, situation.options[chosen], node);
  return {chosen, gains[chosen], fmt::format("pays within {}", optimus::text(Seconds(rest)))};
}

Choice by_oracle(const Situation& situation) {
  if (!can_run(situation.options.front())) return most_lasting(situation);
  const double rest = std::min(situation.true_rest.value_or(0), situation.run_left);
  const auto best = best_by(situation, [&](const PlanOption&, std::size_t i) {
    return i == 0 ? 0 : net_gain(situation, i, rest, 0);
  });
  return {best.value_or(0), 0, "hindsight"};
}

}  // namespace

bool has_disappointed(std::optional<double> predicted_gain, std::optional<double> realised_gain) {
  constexpr double kLeastKept = 0.25;
  return predicted_gain && realised_gain && *predicted_gain > 0 &&
         *realised_gain < kLeastKept * *predicted_gain;
}

double settling_seconds(const Policy& policy, const Situation& situation) {
  constexpr double kJudgedSteps = 25;  // in which a gain shows, where they take a tenth of a second or more
  return std::min(policy.settle_seconds, kJudgedSteps * situation.options.front().step_seconds);
}

double undone_part(const Situation& situation, const PlanOption& option) {
  constexpr double kMost = 0.9;
  return std::min(kMost, situation.losses_per_device_second * std::max(1, option.devices) *
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

std::string text(PolicyKind kind) { return kPolicies[static_cast<std::size_t>(kind)]; }

std::vector<std::string> policy_words() { return {kPolicies.begin(), kPolicies.end()}; }

Policy parse_policy(const std::string& word, const std::string& what) {
  for (std::size_t i = 0; i < kPolicies.size(); ++i)
    if (word == kPolicies[i]) return {.kind = static_cast<PolicyKind>(i)};
  throw UsageError("{}: {} is not one of {}", what, in_quotes(word), fmt::join(kPolicies, ", "));
}

Choice choose(const Policy& policy, const Situation& situation) {
  ensure(!situation.options.empty(), "a situation without options");
  switch (policy.kind) {
    case PolicyKind::never:
      return {0, 0, "the plan stays"};
    case PolicyKind::always_best:
      return quickest(situation);
    case PolicyKind::threshold:
      return by_threshold(policy, situation);
    case PolicyKind::lookahead:
      return by_lookahead(policy, situation);
    case PolicyKind::malleus:
      return by_malleus(policy, situation);
    case PolicyKind::rule:
      return by_rule(policy, situation);
    case PolicyKind::learned:
      return learned_choice(policy, situation, [&] { return by_rule(policy, situation); });
    case PolicyKind::oracle:
      return by_oracle(situation);
  }
  return {};
}

}  // namespace optimus
