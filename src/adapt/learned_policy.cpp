// See learned_policy.h. Reading and writing is in learned_policy_file.cpp.
#include "adapt/learned_policy.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace optimus {
namespace {

constexpr float kLeak = 0.05F;

// Of a feature's range in training: what lies further beyond it is unfamiliar.
constexpr float kSlack = 0.25F;
// A choice that is expected to take this many times as long as staying, as the quickest where nothing runs, or as what the rule would do, is
// not followed.
constexpr double kMostSlower = 1.1;
// A change of plan that it is less sure of is the rule's to decide, where something is slow and the present plan runs.
constexpr double kLeastSure = 0.7;
// So many own switches that kept less than this part of what was to be expected of them, and the rule decides.
constexpr int kJudged = 4;
constexpr double kLeastKept = 0.25;

float leaky(float x) { return x > 0 ? x : kLeak * x; }

float within(const LearnedPolicy& network, std::size_t feature, float value) {
  return std::clamp(value, network.low[feature], network.high[feature]);
}

template <std::size_t Units>
void add_scaled(std::array<float, Units>& sums, float scale, const float* row) {
  for (std::size_t u = 0; u < Units; ++u) sums[u] += scale * row[u];
}

// The feature that is beyond everything seen in training, in words.
std::optional<std::string> unfamiliar(const LearnedPolicy& network, std::span<const float> values,
                                      std::size_t first) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float low = network.low[first + i], high = network.high[first + i];
    const float slack = kSlack * (high - low) + 0.02F;
    if (values[i] < low - slack || values[i] > high + slack)
      return fmt::format("{} is {:.2f}, was {:.2f} to {:.2f} in training", feature_names()[first + i],
                         values[i], low, high);
  }
  return std::nullopt;
}

// Of the quickest option: features have pauses in steps and in what things last, not in seconds.
std::optional<std::string> too_long_a_pause(const Situation& situation, const FeatureTable& table) {
  constexpr double kMost = (1 + kSlack) * (kLongestSwitch + kLongestMove);
  const auto quickest = std::min_element(table.estimates.begin(), table.estimates.end());
  const std::size_t option = table.options[static_cast<std::size_t>(quickest - table.estimates.begin())];
  const double pause = situation.options[option].pause_seconds;
  if (pause <= kMost) return std::nullopt;
  return fmt::format("a pause of {}, trials had up to {}", optimus::text(Seconds(pause)),
                     optimus::text(Seconds(kLongestSwitch + kLongestMove)));
}

// Whether own switches brought much less than they should have, predictions being as far off as is known by now.
bool has_disappointed(const Situation& situation) {
  if (situation.num_judged < kJudged) return false;
  const double num = situation.num_judged;
  const double known = situation.mean_miss * situation.num_missed / (situation.num_missed + 1.0);
  const double expected = 1 - (1 - situation.gain_promised / num) * std::exp(std::max(0.0, known));
  return situation.gain_kept / num < kLeastKept * expected;
}

// Trials begin with their best plan: whether another is better where nothing is slow, and nothing was lost or changed, was never learned.
bool is_untouched(const Situation& situation) {
  constexpr double kNever = 1e8;  // seconds ago
  return situation.options.front().step_seconds > 0 && situation.conditions.empty() &&
         situation.switches == 0 && situation.since_loss > kNever && situation.since_arrival > kNever;
}

// Whether the pause costs more than the option can gain until the run ends, which was not learned: trials have no end that they know of.
bool is_too_late(const Policy& policy, const Situation& situation, std::size_t option, double saved) {
  return situation.run_left < Situation{}.run_left &&
         situation.run_left * saved < policy.payback * situation.options[option].pause_seconds;
}

// Of an option, as the table has it; none where it was not looked at.
std::optional<double> estimate_of(const FeatureTable& table, std::size_t option) {
  for (std::size_t row = 0; row < table.options.size(); ++row)
    if (table.options[row] == option) return table.estimates[row];
  return std::nullopt;
}

Choice by_the_rule(const std::string& why, const std::function<Choice()>& rule) {
  Choice choice = rule();
  choice.reason = fmt::format("{}: the rule decides: {}", why, choice.reason);
  return choice;
}

}  // namespace

std::vector<NetworkPass> passes_of(const LearnedPolicy& network, const FeatureTable& table) {
  const float* numbers = network.numbers.data();
  std::array<float, kFirstLayer> shared{};
  add_scaled(shared, 1, numbers + LearnedPolicy::kFirstBias);
  for (std::size_t i = 0; i < kSituationFeatures; ++i)
    add_scaled(shared, within(network, kOptionFeatures + i, table.situation[i]),
               numbers + (kOptionFeatures + i) * kFirstLayer);
  std::vector<NetworkPass> passes(table.rows.size());
  for (std::size_t row = 0; row < passes.size(); ++row) {
    NetworkPass& pass = passes[row];
    pass.first = shared;
    for (std::size_t i = 0; i < kOptionFeatures; ++i)
      add_scaled(pass.first, within(network, i, table.rows[row][i]), numbers + i * kFirstLayer);
    add_scaled(pass.second, 1, numbers + LearnedPolicy::kSecondBias);
    for (std::size_t u = 0; u < kFirstLayer; ++u)
      add_scaled(pass.second, leaky(pass.first[u]), numbers + LearnedPolicy::kSecond + u * kSecondLayer);
    for (std::size_t u = 0; u < kSecondLayer; ++u)
      pass.score += leaky(pass.second[u]) * numbers[LearnedPolicy::kLast + u];
  }
  return passes;
}

std::vector<double> chances_of(std::span<const NetworkPass> passes) {
  double most = -1e30, sum = 0;
  for (const NetworkPass& pass : passes) most = std::max(most, static_cast<double>(pass.score));
  std::vector<double> chances;
  for (const NetworkPass& pass : passes)
    chances.push_back(std::exp(pass.score - most)), sum += chances.back();
  for (double& chance : chances) chance /= sum;
  return chances;
}

Choice learned_choice(const Policy& policy, const Situation& situation, const std::function<Choice()>& rule) {
  const LearnedPolicy& network = policy.network != nullptr ? *policy.network : shipped_policy();
  const FeatureTable table = network.features(situation);
  if (table.rows.empty()) return {0, 0, "nothing can run"};
  const std::vector<double> chances = chances_of(passes_of(network, table));
  const auto row =
      static_cast<std::size_t>(std::max_element(chances.begin(), chances.end()) - chances.begin());
  const std::size_t option = table.options[row];
  const double now = situation.options.front().step_seconds;
  const double other =
      now > 0 ? table.estimates.front() : *std::min_element(table.estimates.begin(), table.estimates.end());
  // A run goes to no plan that is expected to be slower than its own, unless less of it is undone by a loss.
  const bool is_slow = now > 0 && !situation.conditions.empty();
  const bool is_safer = situation.options[option].undone_steps < situation.options.front().undone_steps;
  const double most_slower = now > 0 && !is_safer ? 1 : kMostSlower;
  if (policy.is_guarded) {
    if (is_slow && situation.since_switch < settling_seconds(policy, situation))
      return by_the_rule("just switched", rule);
    if (is_untouched(situation)) return by_the_rule("nothing was slow or changed", rule);
    if (has_disappointed(situation)) return by_the_rule("promised gains did not come", rule);
    if (const auto what = too_long_a_pause(situation, table))
      return by_the_rule("unfamiliar (" + *what + ")", rule);
    if (const auto what = unfamiliar(network, table.situation, kOptionFeatures))
      return by_the_rule("unfamiliar (" + *what + ")", rule);
    if (const auto what = unfamiliar(network, table.rows[row], 0))
      return by_the_rule("unfamiliar (" + *what + ")", rule);
    if (table.estimates[row] > most_slower * other)
      return by_the_rule(fmt::format("vetoed (expects {:.2f}x the step)", table.estimates[row] / other),
                         rule);
    if (is_slow && option != 0 && !is_safer && chances[row] < kLeastSure)
      return by_the_rule(fmt::format("unsure ({:.0f} %)", 100 * chances[row]), rule);
    if (now > 0 && option != 0 &&
        is_too_late(policy, situation, option, is_safer ? 1 : 1 - table.estimates[row] / other))
      return by_the_rule("the run ends soon", rule);
    const std::optional<double> ruled = estimate_of(table, rule().option);
    if (ruled && table.estimates[row] > most_slower * *ruled)
      return by_the_rule(
          fmt::format("vetoed (expects {:.2f}x the rule's step)", table.estimates[row] / *ruled), rule);
  }
  const double gain = other / table.estimates[row] - 1;
  return {option, 0,
          fmt::format("learned, sure to {:.0f} %, expects {:+.1f} % of {} options", 100 * chances[row],
                      100 * gain, table.rows.size())};
}

}  // namespace optimus
