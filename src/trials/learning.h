// Training of the learned policy (policy/learned_policy.h) on random trials (trials/environment.h), in two
// phases:
//
//   imitation       The regret of each option is computed with full knowledge of the trial
//                   (trials/trial_values.h), and the network minimizes the expected regret. The rule policy
//                   makes the decisions in the first round, the network in later rounds.
//   reinforcement   The network samples its choices, and choices that were followed by regret become less
//                   likely (policy gradient). The baseline is the achievable number of steps, which removes
//                   the randomness of the trial.
//
// The gradients of the three small layers are hand-written. Results are bit-identical on the same machine
// for any number of threads. Read next: learning_rounds.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "policy/learned_policy.h"
#include "trials/environment.h"

namespace optimus {

// One decision in a trial, with the observed features and the regret of each option. Regrets are in
// thousandths of the steps that are achievable in the trial.
struct TrainingExample {
  FeatureTable features;
  std::vector<double> regrets;  // [row]: regret; 0 for the best option
  std::size_t chosen_row = 0;   // row of the chosen option
  double later_regret = 0;      // discounted regret of the decisions that follow
};

// Adds to `gradient` the gradient of the expected regret, plus `weight` times the gradient of the
// log-probability of the chosen option. Returns the expected regret.
double add_gradient(const LearnedPolicy& network, const TrainingExample& example, double weight,
                    std::vector<double>& gradient);

// The Adam optimizer with the usual hyperparameters.
class AdamOptimizer {
 public:
  void step(LearnedPolicy& network, const std::vector<double>& gradient, double rate);

 private:
  std::vector<double> mean_, square_;
  int steps_ = 0;
};

// The policy that makes the decisions while training examples are collected.
struct BehaviorPolicy {
  const LearnedPolicy* network = nullptr;  // null: the rule policy
  // If true, samples options with the network's probabilities. Otherwise chooses the most likely option.
  bool is_stochastic = false;
  double exploration = 0;              // fraction of decisions that are uniformly random
  bool uses_prediction_errors = true;  // see LearnedPolicy::uses_prediction_errors
};
// Runs a trial and returns its training examples in the order of the decisions. `number` is the index of the
// trial and also the seed of the random decisions.
std::vector<TrainingExample> collect_examples(const TrialCase& trial_case, const BehaviorPolicy& behavior,
                                              std::uint64_t number);

struct LearningOptions {
  std::uint64_t seed = 1;
  // Approximate duration on two cores. It determines the number of trials and is not a time limit.
  double minutes = 10;
  int threads = 2;
  // For ablation studies.
  bool imitates = true, reinforces = true, uses_prediction_errors = true;
  EnvironmentOptions environment{};
  const LearnedPolicy* start = nullptr;  // initial network; null: random initialization
  int evaluation_trials = 60;            // trials per family that evaluate the network after each round
};

// One point of the learning curve, evaluated on trials that are not used for training.
struct LearningPoint {
  std::string part;  // "imitation", "reinforcement"
  int round = 0;
  double regret = 0;                // mean expected regret of the training examples, in thousandths
  double fraction = 0;              // useful steps as a fraction of the oracle's, mean over families
  std::vector<double> by_family{};  // `fraction` of each family: [index in kTrialFamilies]
  std::vector<double> rule_by_family{};
};

// Calls `show` after each round. Returns the best network of all rounds.
LearnedPolicy learn(const LearningOptions& options, const std::function<void(const LearningPoint&)>& show);

// The mean, over `count` trials of the family starting at trial number `first`, of the useful steps divided
// by the oracle's useful steps.
double mean_fraction(const Policy& policy, TrialFamily family, std::uint64_t first, int count, int threads,
                     const EnvironmentOptions& environment = {});

}  // namespace optimus
