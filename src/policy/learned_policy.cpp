// Implements learned_policy.h: inference and guards. The file format is in learned_policy_file.cpp.
#include "policy/learned_policy.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace optimus {
namespace {

constexpr float kLeak = 0.05F;

// A feature value is unfamiliar if it is outside its training range by more than this fraction of the range.
constexpr float kSlack = 0.25F;
// A choice is vetoed if its expected step time exceeds that of a reference by more than this factor. The
// references are the current plan (or the fastest option, if the current plan cannot run) and the rule
// policy's choice.
constexpr double kMaxSlowdown = 1.1;
// If a condition is active and the current plan can run, the rule policy decides instead of the network when
// the network's switch has a lower probability than this.
constexpr double kMinProbability = 0.7;
// After this number of switches with a measured gain, the rule policy decides instead of the network if the
// total gain is less than kMinGainFraction of the predicted total.
constexpr int kMinJudgedSwitches = 4;
constexpr double kMinGainFraction = 0.25;

float leaky_relu(float x) { return x > 0 ? x : kLeak * x; }

float clamp_to_range(const LearnedPolicy& network, std::size_t feature, float value) {
  return std::clamp(value, network.min_values[feature], network.max_values[feature]);
}

template <std::size_t Units>
void add_scaled(std::array<float, Units>& sums, float scale, const float* row) {
  for (std::size_t u = 0; u < Units; ++u) sums[u] += scale * row[u];
}

// Returns a message about the first feature whose value is outside its training range, or nullopt if all
// values are within their ranges. `first` is the feature index of values[0].
std::optional<std::string> unfamiliar_feature(const LearnedPolicy& network, std::span<const float> values,
                                              std::size_t first) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float low = network.min_values[first + i], high = network.max_values[first + i];
    const float slack = kSlack * (high - low) + 0.02F;
    if (values[i] < low - slack || values[i] > high + slack)
      return fmt::format("{}: {:.2f}; range in training: {:.2f} to {:.2f}", feature_names()[first + i],
                         values[i], low, high);
  }
  return std::nullopt;
}

// Checks the pause of the fastest option in seconds. The features contain pauses only relative to step times
// and to the expected duration of conditions.
std::optional<std::string> unfamiliar_pause(const Situation& situation, const FeatureTable& table) {
  constexpr double kMaxPause = (1 + kSlack) * (kMaxSwitchSeconds + kMaxMoveSeconds);
  const auto fastest = std::min_element(table.estimates.begin(), table.estimates.end());
  const std::size_t option = table.options[static_cast<std::size_t>(fastest - table.estimates.begin())];
  const double pause = situation.options[option].pause_seconds;
  if (pause <= kMaxPause) return std::nullopt;
  return fmt::format("a pause of {}; maximum in training: {}", optimus::text(Seconds(pause)),
                     optimus::text(Seconds(kMaxSwitchSeconds + kMaxMoveSeconds)));
}

// Whether switches have gained much less than predicted, even if the predictions are corrected by their known
// mean error.
bool has_missed_gains(const Situation& situation) {
  if (situation.num_judged_switches < kMinJudgedSwitches) return false;
  const double num_switches = situation.num_judged_switches;
  const double known_miss = situation.mean_prediction_error * situation.num_prediction_errors /
                            (situation.num_prediction_errors + 1.0);
  const double expected =
      1 - (1 - situation.predicted_gain_sum / num_switches) * std::exp(std::max(0.0, known_miss));
  return situation.measured_gain_sum / num_switches < kMinGainFraction * expected;
}

// Whether the run has had no condition, loss, arrival or switch yet. The simulated runs that train the
// network start with their best plan, so the network has not learned to improve a plan in this situation.
bool is_untouched(const Situation& situation) {
  constexpr double kNever = 1e8;  // seconds
  return situation.options.front().step_seconds > 0 && situation.conditions.empty() &&
         situation.switches == 0 && situation.since_loss > kNever && situation.since_arrival > kNever;
}

// Whether the option's gain until the end of the run is too small for its pause. The network cannot consider
// this, because the features do not include the end of the run.
bool is_too_late(const Policy& policy, const Situation& situation, std::size_t option, double saved) {
  return situation.run_left < Situation{}.run_left &&
         situation.run_left * saved < policy.payback * situation.options[option].pause_seconds;
}

// The expected step time of an option, or nullopt if the table does not contain it.
std::optional<double> estimate_of(const FeatureTable& table, std::size_t option) {
  for (std::size_t row = 0; row < table.options.size(); ++row)
    if (table.options[row] == option) return table.estimates[row];
  return std::nullopt;
}

Choice guarded_choice(const std::string& guard, const std::function<Choice()>& rule) {
  Choice choice = rule();
  choice.reason = fmt::format("{}: the rule decides: {}", guard, choice.reason);
  return choice;
}

}  // namespace

std::vector<NetworkPass> passes_of(const LearnedPolicy& network, const FeatureTable& table) {
  const float* numbers = network.numbers.data();
  std::array<float, kFirstLayer> shared{};
  add_scaled(shared, 1, numbers + LearnedPolicy::kFirstBias);
  for (std::size_t i = 0; i < kSituationFeatures; ++i)
    add_scaled(shared, clamp_to_range(network, kOptionFeatures + i, table.situation[i]),
               numbers + (kOptionFeatures + i) * kFirstLayer);
  std::vector<NetworkPass> passes(table.rows.size());
  for (std::size_t row = 0; row < passes.size(); ++row) {
    NetworkPass& pass = passes[row];
    pass.first = shared;
    for (std::size_t i = 0; i < kOptionFeatures; ++i)
      add_scaled(pass.first, clamp_to_range(network, i, table.rows[row][i]), numbers + i * kFirstLayer);
    add_scaled(pass.second, 1, numbers + LearnedPolicy::kSecondBias);
    for (std::size_t u = 0; u < kFirstLayer; ++u)
      add_scaled(pass.second, leaky_relu(pass.first[u]), numbers + LearnedPolicy::kSecond + u * kSecondLayer);
    for (std::size_t u = 0; u < kSecondLayer; ++u)
      pass.score += leaky_relu(pass.second[u]) * numbers[LearnedPolicy::kLast + u];
  }
  return passes;
}

std::vector<double> probabilities_of(std::span<const NetworkPass> passes) {
  double maximum = -1e30, sum = 0;
  for (const NetworkPass& pass : passes) maximum = std::max(maximum, static_cast<double>(pass.score));
  std::vector<double> probabilities;
  for (const NetworkPass& pass : passes)
    probabilities.push_back(std::exp(pass.score - maximum)), sum += probabilities.back();
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

namespace {

// The network's choice, with the values that the guards check.
struct NetworkChoice {
  std::size_t option = 0, row = 0;
  double probability = 0;
  double estimate = 0;  // expected step time of the chosen option
  // Expected step time of the current plan, or of the fastest option if the current plan cannot run.
  double reference = 0;
  double max_slowdown = 1;  // the estimate is vetoed above this multiple of the reference
  bool is_slow = false;     // a condition is in force, and the current plan can run
  bool is_safer = false;    // a loss undoes fewer steps than under the current plan
};

NetworkChoice network_choice(const LearnedPolicy& network, const Situation& situation,
                             const FeatureTable& table) {
  const std::vector<double> probabilities = probabilities_of(passes_of(network, table));
  NetworkChoice choice;
  choice.row = static_cast<std::size_t>(std::max_element(probabilities.begin(), probabilities.end()) -
                                        probabilities.begin());
  choice.option = table.options[choice.row];
  choice.probability = probabilities[choice.row];
  choice.estimate = table.estimates[choice.row];
  const PlanOption& current_option = situation.options.front();
  const bool can_run_current_option = current_option.step_seconds > 0;
  choice.reference = can_run_current_option
                         ? table.estimates.front()
                         : *std::min_element(table.estimates.begin(), table.estimates.end());
  choice.is_slow = can_run_current_option && !situation.conditions.empty();
  choice.is_safer = situation.options[choice.option].undone_steps < current_option.undone_steps;
  // A plan that is expected to be slower is accepted only if a device loss would undo fewer of its steps.
  choice.max_slowdown = can_run_current_option && !choice.is_safer ? 1 : kMaxSlowdown;
  return choice;
}

// Returns why the network should not be trusted in this situation, or nullopt if there is no reason.
std::optional<std::string> reason_not_learned(const Policy& policy, const LearnedPolicy& network,
                                              const Situation& situation, const FeatureTable& table,
                                              const NetworkChoice& choice) {
  if (choice.is_slow && situation.since_switch < settling_seconds(policy, situation))
    return "too soon after the last switch";
  if (is_untouched(situation)) return "no condition, loss or switch so far";
  if (has_missed_gains(situation)) return "predicted gains were not reached";
  std::optional<std::string> reason = unfamiliar_pause(situation, table);
  if (!reason) reason = unfamiliar_feature(network, table.situation, kOptionFeatures);
  if (!reason) reason = unfamiliar_feature(network, table.rows[choice.row], 0);
  return reason ? std::optional("unfamiliar (" + *reason + ")") : std::nullopt;
}

// Returns why the network's choice is rejected, or nullopt if it is accepted.
std::optional<std::string> reason_for_veto(const Policy& policy, const Situation& situation,
                                           const FeatureTable& table, const NetworkChoice& choice,
                                           const std::function<Choice()>& rule) {
  if (choice.estimate > choice.max_slowdown * choice.reference)
    return fmt::format("vetoed (expects {:.2f}x the step time)", choice.estimate / choice.reference);
  const bool is_switch = choice.option != 0;
  if (choice.is_slow && is_switch && !choice.is_safer && choice.probability < kMinProbability)
    return fmt::format("unsure ({:.0f} %)", 100 * choice.probability);
  const double saved = choice.is_safer ? 1 : 1 - choice.estimate / choice.reference;
  if (situation.options.front().step_seconds > 0 && is_switch &&
      is_too_late(policy, situation, choice.option, saved))
    return "the run ends soon";
  const std::optional<double> rule_estimate = estimate_of(table, rule().option);
  if (rule_estimate && choice.estimate > choice.max_slowdown * *rule_estimate)
    return fmt::format("vetoed (expects {:.2f}x the step time of the rule's choice)",
                       choice.estimate / *rule_estimate);
  return std::nullopt;
}

}  // namespace

Choice learned_choice(const Policy& policy, const Situation& situation, const std::function<Choice()>& rule) {
  const LearnedPolicy& network = policy.network != nullptr ? *policy.network : shipped_policy();
  const FeatureTable table = network.features(situation);
  if (table.rows.empty()) return {0, 0, "no plan can run"};
  const NetworkChoice choice = network_choice(network, situation, table);
  if (policy.is_guarded) {
    if (const auto reason = reason_not_learned(policy, network, situation, table, choice))
      return guarded_choice(*reason, rule);
    if (const auto reason = reason_for_veto(policy, situation, table, choice, rule))
      return guarded_choice(*reason, rule);
  }
  const double gain = choice.reference / choice.estimate - 1;
  return {choice.option, 0,
          fmt::format("learned policy, {:.0f} % sure, expects {:+.1f} %, {} options",
                      100 * choice.probability, 100 * gain, table.rows.size())};
}

}  // namespace optimus
