// Implements learning.h: training examples, gradients and optimizer steps.
#include "trials/learning.h"

#include <algorithm>
#include <cmath>

#include "trials/random_stream.h"
#include "trials/trial_values.h"

namespace optimus {
namespace {

constexpr float kLeakySlope = 0.05F;  // as in learned_policy.cpp
// The maximum regret, in thousandths. Limits the weight of decisions in very short trials.
constexpr double kMaxRegret = 20;
constexpr int kDiscountHorizon = 24;  // number of decisions over which later regret is discounted

double activation_slope(float x) { return x > 0 ? 1 : kLeakySlope; }
double activation(float x) { return x > 0 ? x : kLeakySlope * x; }

float input_of(const LearnedPolicy& network, const FeatureTable& features, std::size_t row, std::size_t i) {
  const float value = i < kOptionFeatures ? features.rows[row][i] : features.situation[i - kOptionFeatures];
  return std::clamp(value, network.min_values[i], network.max_values[i]);
}

void backpropagate_row(const LearnedPolicy& network, const FeatureTable& features, std::size_t row,
                       const NetworkPass& pass, double score_slope, std::vector<double>& gradient) {
  std::array<double, kFirstLayer> first_slopes{};
  for (std::size_t u = 0; u < kSecondLayer; ++u) {
    gradient[LearnedPolicy::kLast + u] += score_slope * activation(pass.second[u]);
    const double unit_slope =
        score_slope * network.numbers[LearnedPolicy::kLast + u] * activation_slope(pass.second[u]);
    gradient[LearnedPolicy::kSecondBias + u] += unit_slope;
    for (std::size_t v = 0; v < kFirstLayer; ++v) {
      const std::size_t offset = LearnedPolicy::kSecond + v * kSecondLayer + u;
      gradient[offset] += unit_slope * activation(pass.first[v]);
      first_slopes[v] += unit_slope * network.numbers[offset];
    }
  }
  for (std::size_t v = 0; v < kFirstLayer; ++v)
    first_slopes[v] *= activation_slope(pass.first[v]),
        gradient[LearnedPolicy::kFirstBias + v] += first_slopes[v];
  for (std::size_t i = 0; i < kFeatures; ++i) {
    const double value = input_of(network, features, row, i);
    if (value == 0) continue;
    double* const offset = gradient.data() + i * kFirstLayer;
    for (std::size_t v = 0; v < kFirstLayer; ++v) offset[v] += value * first_slopes[v];
  }
}

std::size_t row_of_option(const FeatureTable& features, std::size_t option) {
  const auto it = std::find(features.options.begin(), features.options.end(), option);
  return it == features.options.end() ? 0 : static_cast<std::size_t>(it - features.options.begin());
}

std::size_t sample_row(const std::vector<double>& probabilities, double uniform) {
  for (std::size_t row = 0; row < probabilities.size(); ++row)
    if ((uniform -= probabilities[row]) < 0) return row;
  return probabilities.size() - 1;
}

}  // namespace

double add_gradient(const LearnedPolicy& network, const TrainingExample& example, double weight,
                    std::vector<double>& gradient) {
  const std::vector<NetworkPass> passes = passes_of(network, example.features);
  const std::vector<double> probabilities = probabilities_of(passes);
  double regret = 0;
  for (std::size_t row = 0; row < probabilities.size(); ++row)
    regret += probabilities[row] * example.regrets[row];
  for (std::size_t row = 0; row < probabilities.size(); ++row) {
    const double score_gradient = (row == example.chosen_row ? 1 : 0) - probabilities[row];
    const double score_slope = probabilities[row] * (example.regrets[row] - regret) + weight * score_gradient;
    if (std::abs(score_slope) > 1e-9)
      backpropagate_row(network, example.features, row, passes[row], score_slope, gradient);
  }
  return regret;
}

void AdamOptimizer::step(LearnedPolicy& network, const std::vector<double>& gradient, double rate) {
  mean_.resize(gradient.size(), 0), square_.resize(gradient.size(), 0);
  ++steps_;
  const double mean_correction = 1 - std::pow(0.9, steps_), square_correction = 1 - std::pow(0.999, steps_);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    mean_[i] = 0.9 * mean_[i] + 0.1 * gradient[i];
    square_[i] = 0.999 * square_[i] + 0.001 * gradient[i] * gradient[i];
    network.numbers[i] -= static_cast<float>(rate * mean_[i] / mean_correction /
                                             (std::sqrt(square_[i] / square_correction) + 1e-8));
  }
}

std::vector<TrainingExample> collect_examples(const TrialCase& trial_case, const BehaviorPolicy& behavior,
                                              std::uint64_t number) {
  const TrialValues values(trial_case);
  const double achievable_steps = std::max(1.0, hindsight(trial_case).useful_steps);
  RandomStream draw(RandomKey(number).derive("choices"));
  std::vector<TrainingExample> examples;
  const Decider decider = [&](const Situation& situation, const TrialPoint& point) {
    TrainingExample example{
        .features =
            features_of(behavior.uses_prediction_errors ? situation : without_prediction_errors(situation)),
        .regrets = {}};
    if (example.features.rows.empty()) return Choice{0, 0, {}};
    const std::vector<double> option_steps = values.values_of_options(point);
    double maximum = -1e300;
    for (const std::size_t option : example.features.options)
      maximum = std::max(maximum, option_steps[option]);
    for (const std::size_t option : example.features.options)
      example.regrets.push_back(
          std::min(kMaxRegret, 1000 * (maximum - option_steps[option]) / achievable_steps));
    const std::size_t num_rows = example.features.rows.size();
    if (draw.chance(behavior.exploration)) {
      example.chosen_row = draw.below(num_rows);
    } else if (behavior.network == nullptr) {
      example.chosen_row =
          row_of_option(example.features, choose({.kind = PolicyKind::rule}, situation).option);
    } else {
      const std::vector<double> probabilities =
          probabilities_of(passes_of(*behavior.network, example.features));
      example.chosen_row =
          behavior.is_stochastic
              ? sample_row(probabilities, draw.uniform())
              : static_cast<std::size_t>(std::max_element(probabilities.begin(), probabilities.end()) -
                                         probabilities.begin());
    }
    examples.push_back(example);
    return Choice{example.features.options[example.chosen_row], 0, {}};
  };
  (void)run_trial(decider, trial_case);
  // Assigns to each decision the discounted regret of the decisions that follow.
  const double discount = 1 - 1.0 / kDiscountHorizon;
  double later_regret = 0;
  for (std::size_t i = examples.size(); i-- > 0;) {
    examples[i].later_regret = later_regret;
    later_regret = examples[i].regrets[examples[i].chosen_row] + discount * later_regret;
  }
  return examples;
}

}  // namespace optimus
