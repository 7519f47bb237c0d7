// TrialValues: the value of the rest of a trial, for training. For every mode at the start of every segment:
// the largest number of steps that can still be completed with full knowledge of the future, with the same
// costs for losses, detection and pauses as policies pay. The regret of a decision is the value that it
// forgoes. Not available to policies, which do not know the future.
#pragma once

#include <vector>

#include "trials/trial.h"

namespace optimus {

class TrialValues {
 public:
  explicit TrialValues(const TrialCase& trial_case);
  // The value of each option: steps from `point` to the end of the trial if the option is chosen now and the
  // best sequence follows after this segment. The first option is to stay.
  std::vector<double> of_options(const TrialPoint& point) const;

 private:
  double at(std::size_t segment, int mode) const;
  double pause(int from, int to) const;
  double undone(std::size_t segment, int mode) const;  // steps undone by a loss at its start
  double best_from(std::size_t segment, int mode) const;

  const TrialCase& trial_case_;
  std::vector<std::vector<double>> values_;  // [segment][mode]; last: standing still
};

}  // namespace optimus
