// TrialValues: the value of the remaining part of a trial, for training. The value of a mode at the start of
// a segment is the largest number of steps that can still be completed with full knowledge of the future. It
// includes the same costs of losses, detection and pauses that policies pay. The regret of a decision is the
// value that it loses. Policies cannot use these values because they do not know the future.
#pragma once

#include <vector>

#include "trials/trial.h"

namespace optimus {

class TrialValues {
 public:
  explicit TrialValues(const TrialCase& trial_case);
  // Returns the value of each option: the number of steps from `point` to the end of the trial if the option
  // is chosen now and the best sequence of modes follows after this segment. The first option keeps the
  // current mode.
  std::vector<double> values_of_options(const TrialPoint& point) const;

 private:
  double at(std::size_t segment, int mode) const;
  double pause(int from, int to) const;
  double num_undone_steps(std::size_t segment,
                          int mode) const;  // steps that a loss at the start of the segment undoes
  double best_from(std::size_t segment, int mode) const;

  const TrialCase& trial_case_;
  std::vector<std::vector<double>> values_;  // [segment][mode]; the last mode stands for not training
};

}  // namespace optimus
