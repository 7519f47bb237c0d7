// Implements learning.h: training examples, gradients and optimizer steps.
#include "trials/learning.h"

#include <algorithm>
#include <cmath>

#include "trials/environment_draw.h"
#include "trials/trial_values.h"

namespace optimus {
namespace {

constexpr float kLeakOfUnits = 0.05F;  // as in learned_policy.cpp
// In thousandths. Limits the weight of a decision in a very short trial.
constexpr double kMostRegret = 20;
constexpr int kDecisionsLater = 24;  // horizon, in decisions, of the discounted regret

double slope(float x) { return x > 0 ? 1 : kLeakOfUnits; }
double output(float x) { return x > 0 ? x : kLeakOfUnits * x; }

float input_of(const LearnedPolicy& network, const FeatureTable& seen, std::size_t row, std::size_t i) {
  const float value = i < kOptionFeatures ? seen.rows[row][i] : seen.situation[i - kOptionFeatures];
  return std::clamp(value, network.low[i], network.high[i]);
}

void add_row_gradient(const LearnedPolicy& network, const FeatureTable& seen, std::size_t row,
                      const NetworkPass& pass, double by_score, std::vector<double>& gradient) {
  std::array<double, kFirstLayer> first{};
  for (std::size_t u = 0; u < kSecondLayer; ++u) {
    gradient[LearnedPolicy::kLast + u] += by_score * output(pass.second[u]);
    const double by_unit = by_score * network.numbers[LearnedPolicy::kLast + u] * slope(pass.second[u]);
    gradient[LearnedPolicy::kSecondBias + u] += by_unit;
    for (std::size_t v = 0; v < kFirstLayer; ++v) {
      const std::size_t place = LearnedPolicy::kSecond + v * kSecondLayer + u;
      gradient[place] += by_unit * output(pass.first[v]);
      first[v] += by_unit * network.numbers[place];
    }
  }
  for (std::size_t v = 0; v < kFirstLayer; ++v)
    first[v] *= slope(pass.first[v]), gradient[LearnedPolicy::kFirstBias + v] += first[v];
  for (std::size_t i = 0; i < kFeatures; ++i) {
    const double value = input_of(network, seen, row, i);
    if (value == 0) continue;
    double* const place = gradient.data() + i * kFirstLayer;
    for (std::size_t v = 0; v < kFirstLayer; ++v) place[v] += value * first[v];
  }
}

std::size_t row_of_option(const FeatureTable& seen, std::size_t option) {
  const auto found = std::find(seen.options.begin(), seen.options.end(), option);
  return found == seen.options.end() ? 0 : static_cast<std::size_t>(found - seen.options.begin());
}

std::size_t drawn_row(const std::vector<double>& chances, double uniform) {
  for (std::size_t row = 0; row < chances.size(); ++row)
    if ((uniform -= chances[row]) < 0) return row;
  return chances.size() - 1;
}

}  // namespace

double add_gradient(const LearnedPolicy& network, const Lesson& lesson, double weight,
                    std::vector<double>& gradient) {
  const std::vector<NetworkPass> passes = passes_of(network, lesson.seen);
  const std::vector<double> chances = probabilities_of(passes);
  double regret = 0;
  for (std::size_t row = 0; row < chances.size(); ++row) regret += chances[row] * lesson.regrets[row];
  for (std::size_t row = 0; row < chances.size(); ++row) {
    const double of_taken = (row == lesson.taken ? 1 : 0) - chances[row];
    const double by_score = chances[row] * (lesson.regrets[row] - regret) + weight * of_taken;
    if (std::abs(by_score) > 1e-9)
      add_row_gradient(network, lesson.seen, row, passes[row], by_score, gradient);
  }
  return regret;
}

void Improver::step(LearnedPolicy& network, const std::vector<double>& gradient, double rate) {
  mean_.resize(gradient.size(), 0), square_.resize(gradient.size(), 0);
  ++steps_;
  const double of_mean = 1 - std::pow(0.9, steps_), of_square = 1 - std::pow(0.999, steps_);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    mean_[i] = 0.9 * mean_[i] + 0.1 * gradient[i];
    square_[i] = 0.999 * square_[i] + 0.001 * gradient[i] * gradient[i];
    network.numbers[i] -=
        static_cast<float>(rate * mean_[i] / of_mean / (std::sqrt(square_[i] / of_square) + 1e-8));
  }
}

std::vector<Lesson> lessons_of(const TrialCase& one, const LessonTaker& taker, std::uint64_t number) {
  const TrialValues values(one);
  const double all = std::max(1.0, hindsight(one).useful_steps);
  Draw draw(RandomKey(number).with("choices"));
  std::vector<Lesson> lessons;
  const Decider decider = [&](const Situation& situation, const TrialPoint& point) {
    Lesson lesson{.seen = features_of(taker.sees_misses ? situation : without_misses(situation)),
                  .regrets = {}};
    if (lesson.seen.rows.empty()) return Choice{0, 0, {}};
    const std::vector<double> worth = values.of_options(point);
    double most = -1e300;
    for (const std::size_t option : lesson.seen.options) most = std::max(most, worth[option]);
    for (const std::size_t option : lesson.seen.options)
      lesson.regrets.push_back(std::min(kMostRegret, 1000 * (most - worth[option]) / all));
    const std::size_t num = lesson.seen.rows.size();
    if (draw.chance(taker.wanders)) {
      lesson.taken = draw.below(num);
    } else if (taker.network == nullptr) {
      lesson.taken = row_of_option(lesson.seen, choose({.kind = PolicyKind::rule}, situation).option);
    } else {
      const std::vector<double> chances = probabilities_of(passes_of(*taker.network, lesson.seen));
      lesson.taken =
          taker.draws
              ? drawn_row(chances, draw.uniform())
              : static_cast<std::size_t>(std::max_element(chances.begin(), chances.end()) - chances.begin());
    }
    lessons.push_back(lesson);
    return Choice{lesson.seen.options[lesson.taken], 0, {}};
  };
  (void)run_trial(decider, one);
  // Adds the discounted regret of the subsequent decisions to each decision.
  const double fades = 1 - 1.0 / kDecisionsLater;
  double later = 0;
  for (std::size_t i = lessons.size(); i-- > 0;) {
    lessons[i].later = later;
    later = lessons[i].regrets[lessons[i].taken] + fades * later;
  }
  return lessons;
}

}  // namespace optimus
