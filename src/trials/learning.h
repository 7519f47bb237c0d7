// Training of the learned policy (policy/learned_policy.h) on random trials (trials/environment.h), in two
// phases:
//
//   imitation       the training target of a decision is the regret of each option, computed with full
//                   knowledge of the trial (trials/trial_values.h); the network minimizes the expected
//                   regret. In the first round the rule policy decides, in later rounds the network.
//   reinforcement   the network samples its choices, and choices that were followed by regret become less
//                   likely (policy gradient; the achievable number of steps serves as the baseline, which
//                   removes the randomness of the trial).
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

// One decision of a trial: the observed features, and the regret of each option in thousandths of the steps
// that are achievable in the trial.
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

// The Adam optimizer with its usual hyperparameters.
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
  // Samples options by the network's probabilities; if false, chooses the most likely option.
  bool is_stochastic = false;
  double exploration = 0;              // fraction of decisions that are uniformly random
  bool uses_prediction_errors = true;  // as LearnedPolicy::uses_prediction_errors
};
// The training examples of a trial in the order of its decisions. `number`: index of the trial, which also
// seeds the random decisions.
std::vector<TrainingExample> collect_examples(const TrialCase& trial_case, const BehaviorPolicy& behavior,
                                              std::uint64_t number);

struct LearningOptions {
  std::uint64_t seed = 1;
  // Duration on two cores, as for the shipped policy. It determines the number of trials and is not a time
  // limit.
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

// Useful steps as a fraction of the oracle's: the mean over `count` trials of the family, starting with
// trial number `first`.
double mean_fraction(const Policy& policy, TrialFamily family, std::uint64_t first, int count, int threads,
                     const EnvironmentOptions& environment = {});

}  // namespace optimus
