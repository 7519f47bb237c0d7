// Training of the learned policy (adapt/learned_policy.h) in random trials (trials/environment.h), in two parts:
//
//   imitation       what each option would have cost, by hindsight (trials/trial_values.h), is the lesson of a decision; the network
//                   learns to choose so that little is lost on average. Trials are run by the rule first, then by the network itself.
//   reinforcement   the network chooses by chance, and choices that were followed by losses become rarer (policy gradient; what hindsight
//                   would still have got done is the baseline, so that the trial's luck does not count).
//
// Gradients are written out by hand: three small layers. The same numbers give the same bits on the same machine, with any number of
// threads. Pure but for threads. Read next: learning_rounds.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "adapt/learned_policy.h"
#include "trials/environment.h"

namespace optimus {

// One decision of one trial: what was seen, and what each option left of what could have been done, in thousandths of the trial.
struct Lesson {
  FeatureTable seen;
  std::vector<double> regrets;  // [row]; the best has 0
  std::size_t taken = 0;        // row
  double later = 0;             // regret of the decisions that followed
};

// Adds the gradient of the lesson's expected regret, and of `weight` times the logarithm of the taken option's chance. Returns the regret.
double add_gradient(const LearnedPolicy& network, const Lesson& lesson, double weight,
                    std::vector<double>& gradient);

// Adam, with its usual constants.
class Improver {
 public:
  void step(LearnedPolicy& network, const std::vector<double>& gradient, double rate);

 private:
  std::vector<double> mean_, square_;
  int steps_ = 0;
};

// Who decides while lessons are taken.
struct LessonTaker {
  const LearnedPolicy* network = nullptr;  // none: the rule
  bool draws = false;                      // by the network's chances; else its best
  double wanders = 0;                      // part of the decisions that are left to chance
  bool sees_misses = true;                 // as in LearnedPolicy
};
// In the order of the decisions. `number`: of the trial, also for what is left to chance.
std::vector<Lesson> lessons_of(const TrialCase& one, const LessonTaker& taker, std::uint64_t number);

struct LearningOptions {
  std::uint64_t seed = 1;
  double minutes =
      10;  // of two cores as the shipped policy's were; sets how many trials there are, not when it ends
  int threads = 2;
  // For those who want to know what each brings.
  bool imitates = true, reinforces = true, sees_misses = true;
  EnvironmentOptions environment{};
  const LearnedPolicy* start = nullptr;  // goes on with this one
  int judging_trials = 60;               // of each family, after each round
};

// One line of the learning curve, judged on trials that no lesson comes from.
struct LearningPoint {
  std::string part;  // "imitation", "reinforcement"
  int round = 0;
  double regret = 0;                // expected, of lessons, in thousandths
  double fraction = 0;              // of the oracle's useful steps, mean over families
  std::vector<double> by_family{};  // [kTrialFamilies]
  std::vector<double> rule_by_family{};
};

// Calls `show` after each round. The best of all rounds is returned.
LearnedPolicy learn(const LearningOptions& options, const std::function<void(const LearningPoint&)>& show);

// Useful steps as part of the oracle's, mean over trials of the family with these numbers.
double mean_fraction(const Policy& policy, TrialFamily family, std::uint64_t first, int count, int threads,
                     const EnvironmentOptions& environment = {});

}  // namespace optimus
