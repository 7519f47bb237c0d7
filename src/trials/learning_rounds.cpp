// Implements learning.h: the training rounds.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "trials/learning.h"
#include "trials/random_stream.h"

namespace optimus {
namespace {

// Values for ten minutes of training.
constexpr int kImitationRounds = 6, kReinforcementRounds = 8;
constexpr double kTrialsPerRound = 120;  // number of trials per family
// If a trial has more examples, a random subset is used.
constexpr std::size_t kMaxExamplesPerTrial = 48;
constexpr std::size_t kReplayRounds = 3;  // number of rounds in the replay buffer
constexpr int kPasses = 3, kBatch = 32;
constexpr double kImitationRate = 2e-3, kReinforcementRate = 1e-4;
// The first trial number for evaluation. It is larger than the numbers of all training trials.
constexpr std::uint64_t kEvaluationNumbers = 1'000'000'000'000;

void for_each_index(int threads, int count, const std::function<void(int)>& body) {
  std::atomic<int> next = 0;
  std::vector<std::jthread> workers;
  for (int t = 0; t < std::max(1, threads); ++t)
    workers.emplace_back([&] {
      for (int i = next++; i < count; i = next++) body(i);
    });
}

// A random subset of a trial's examples, weighted to represent all of them.
std::vector<TrainingExample> subsample(std::vector<TrainingExample> examples, std::uint64_t number) {
  if (examples.size() <= kMaxExamplesPerTrial) return examples;
  const double weight = static_cast<double>(examples.size()) / static_cast<double>(kMaxExamplesPerTrial);
  RandomStream draw(RandomKey(number).derive("kept"));
  for (std::size_t i = 0; i < kMaxExamplesPerTrial; ++i)
    std::swap(examples[i], examples[i + draw.below(examples.size() - i)]);
  examples.resize(kMaxExamplesPerTrial);
  for (TrainingExample& example : examples) {
    for (double& regret : example.regrets) regret *= weight;
    example.later_regret *= weight;
  }
  return examples;
}

void widen_input_ranges(LearnedPolicy& network, const std::vector<TrainingExample>& examples) {
  const auto include = [&](std::size_t i, float value) {
    network.min_values[i] = std::min(network.min_values[i], value),
    network.max_values[i] = std::max(network.max_values[i], value);
  };
  for (const TrainingExample& example : examples) {
    for (std::size_t i = 0; i < kSituationFeatures; ++i)
      include(kOptionFeatures + i, example.features.situation[i]);
    for (const auto& row : example.features.rows)
      for (std::size_t i = 0; i < kOptionFeatures; ++i) include(i, row[i]);
  }
}

class Training {
 public:
  Training(const LearningOptions& options, const std::function<void(const LearningPoint&)>& show)
      : options_(options), show_(show), draw_(RandomKey(options.seed).derive("training")) {
    trials_per_family_ = std::max(2, static_cast<int>(kTrialsPerRound * std::min(1.0, options.minutes / 10)));
    const double duration_factor = std::max(1.0, options.minutes / 10);
    imitation_rounds_ = static_cast<int>(kImitationRounds * duration_factor);
    reinforcement_rounds_ = static_cast<int>(kReinforcementRounds * duration_factor);
    if (options.start != nullptr)
      network_ = *options.start;
    else
      initialize_network();
    network_.uses_prediction_errors = options.uses_prediction_errors;
  }

  LearnedPolicy run() {
    evaluate_rules();
    evaluate("start", 0, 0);
    if (options_.imitates)
      for (int round = 0; round < imitation_rounds_; ++round) imitate(round);
    if (options_.imitates) network_ = best_network_;
    if (options_.reinforces)
      for (int round = 0; round < reinforcement_rounds_; ++round) reinforce(round);
    return best_network_;
  }

 private:
  void initialize_network() {
    const auto fill = [&](std::size_t first, std::size_t count, double inputs) {
      for (std::size_t i = first; i < first + count; ++i)
        network_.numbers[i] = static_cast<float>(draw_.normal() * std::sqrt(1 / inputs));
    };
    fill(LearnedPolicy::kFirst, kFeatures * kFirstLayer, kFeatures);
    fill(LearnedPolicy::kSecond, kFirstLayer * kSecondLayer, kFirstLayer);
    fill(LearnedPolicy::kLast, kSecondLayer, kSecondLayer);
  }

  // Runs trials of all families in turn. Returns the examples of each trial, in the order of the trials.
  std::vector<std::vector<TrainingExample>> collect_round(BehaviorPolicy behavior) {
    behavior.uses_prediction_errors = options_.uses_prediction_errors;
    const int num_trials = trials_per_family_ * static_cast<int>(kTrialFamilies.size());
    std::vector<std::vector<TrainingExample>> examples_by_trial(static_cast<std::size_t>(num_trials));
    const std::uint64_t first_number = (options_.seed << 32) + trials_;
    for_each_index(options_.threads, num_trials, [&](int i) {
      const TrialFamily family = kTrialFamilies[static_cast<std::size_t>(i) % kTrialFamilies.size()];
      const std::uint64_t number = first_number + static_cast<std::uint64_t>(i);
      const TrialCase trial_case = random_trial(family, number, options_.environment);
      examples_by_trial[static_cast<std::size_t>(i)] =
          subsample(collect_examples(trial_case, behavior, number), number);
    });
    trials_ += static_cast<std::uint64_t>(num_trials);
    return examples_by_trial;
  }

  void imitate(int round) {
    BehaviorPolicy behavior{
        .network = round == 0 ? nullptr : &network_, .is_stochastic = false, .exploration = 0.1};
    std::vector<TrainingExample> new_examples;
    for (std::vector<TrainingExample>& examples : collect_round(behavior))
      new_examples.insert(new_examples.end(), examples.begin(), examples.end());
    widen_input_ranges(network_, new_examples);
    replay_rounds_.push_back(std::move(new_examples));
    if (replay_rounds_.size() > kReplayRounds) replay_rounds_.erase(replay_rounds_.begin());
    std::vector<const TrainingExample*> order;
    for (const std::vector<TrainingExample>& examples : replay_rounds_)
      for (const TrainingExample& example : examples) order.push_back(&example);
    const double rate = kImitationRate * std::pow(0.7, round);
    double regret = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw_.below(i)]);
      regret = train_pass(order, {}, rate);
    }
    evaluate("imitation", round + 1, regret);
  }

  void reinforce(int round) {
    const std::vector<std::vector<TrainingExample>> trials =
        collect_round({.network = &network_, .is_stochastic = true, .exploration = 0});
    if (!options_.imitates)  // the input ranges are not known yet
      for (const std::vector<TrainingExample>& examples : trials) widen_input_ranges(network_, examples);
    std::vector<const TrainingExample*> order;
    std::vector<double> weights;
    for (const std::vector<TrainingExample>& examples : trials) {
      double mean = 0;
      for (const TrainingExample& example : examples)
        mean += example.later_regret / static_cast<double>(examples.size());
      for (const TrainingExample& example : examples)
        order.push_back(&example), weights.push_back(example.later_regret - mean);
    }
    std::vector<std::size_t> indices(order.size());
    std::iota(indices.begin(), indices.end(), std::size_t{0});
    for (std::size_t i = indices.size(); i > 1; --i) std::swap(indices[i - 1], indices[draw_.below(i)]);
    std::vector<const TrainingExample*> shuffled;
    std::vector<double> shuffled_weights;
    for (const std::size_t index : indices)
      shuffled.push_back(order[index]), shuffled_weights.push_back(weights[index]);
    const double regret = train_pass(shuffled, shuffled_weights, kReinforcementRate * std::pow(0.93, round));
    evaluate("reinforcement", round + 1, regret);
  }

  // Makes one pass over the examples and returns their mean regret. `weights` contains the weight of each
  // example's chosen option, and is empty for imitation.
  double train_pass(const std::vector<const TrainingExample*>& examples, const std::vector<double>& weights,
                    double rate) {
    double sum = 0;
    std::vector<double> gradient(LearnedPolicy::kNumbers);
    for (std::size_t begin = 0; begin < examples.size(); begin += kBatch) {
      std::fill(gradient.begin(), gradient.end(), 0);
      const std::size_t end = std::min(examples.size(), begin + kBatch);
      for (std::size_t i = begin; i < end; ++i)
        sum += add_gradient(network_, *examples[i], weights.empty() ? 0 : weights[i], gradient);
      optimizer_.step(network_, gradient, rate);
    }
    return sum / static_cast<double>(std::max<std::size_t>(1, examples.size()));
  }

  void evaluate_rules() {
    for (const TrialFamily family : kTrialFamilies) {
      double best = 0;
      for (const PolicyKind kind : {PolicyKind::always_best, PolicyKind::threshold, PolicyKind::lookahead,
                                    PolicyKind::malleus, PolicyKind::rule})
        best =
            std::max(best, mean_fraction({.kind = kind}, family, kEvaluationNumbers,
                                         options_.evaluation_trials, options_.threads, options_.environment));
      rule_fractions_.push_back(best);
    }
  }

  // Keeps the network with the best score. The score is the mean over families. Shortfalls relative to the
  // best rule-based policy are weighted twice.
  void evaluate(const std::string& part, int round, double regret) {
    LearningPoint point{part, round, regret, 0, {}, rule_fractions_};
    double score = 0;
    for (std::size_t f = 0; f < kTrialFamilies.size(); ++f) {
      const double fraction = mean_fraction(
          {.kind = PolicyKind::learned, .network = &network_, .is_guarded = false}, kTrialFamilies[f],
          kEvaluationNumbers, options_.evaluation_trials, options_.threads, options_.environment);
      point.by_family.push_back(fraction);
      point.fraction += fraction / static_cast<double>(kTrialFamilies.size());
      score += fraction - std::max(0.0, rule_fractions_[f] - fraction);
    }
    if (score > best_score_) best_score_ = score, best_network_ = network_;
    show_(point);
  }

  const LearningOptions& options_;
  const std::function<void(const LearningPoint&)>& show_;
  RandomStream draw_;
  int trials_per_family_ = 1, imitation_rounds_ = 1, reinforcement_rounds_ = 1;
  std::uint64_t trials_ = 0;
  LearnedPolicy network_, best_network_;
  double best_score_ = -1e300;
  std::vector<double> rule_fractions_;
  std::vector<std::vector<TrainingExample>> replay_rounds_;
  AdamOptimizer optimizer_;
};

}  // namespace

double mean_fraction(const Policy& policy, TrialFamily family, std::uint64_t first, int count, int threads,
                     const EnvironmentOptions& environment) {
  std::vector<double> fractions(static_cast<std::size_t>(count));
  for_each_index(threads, count, [&](int i) {
    const TrialCase trial_case = random_trial(family, first + static_cast<std::uint64_t>(i), environment);
    fractions[static_cast<std::size_t>(i)] =
        run_trial(policy, trial_case).useful_steps / std::max(1e-9, hindsight(trial_case).useful_steps);
  });
  return std::accumulate(fractions.begin(), fractions.end(), 0.0) / count;
}

LearnedPolicy learn(const LearningOptions& options, const std::function<void(const LearningPoint&)>& show) {
  return Training(options, show).run();
}

}  // namespace optimus
