// What the rest of a trial is worth, for those who learn from it: from every mode at every segment's begin the most steps that can still
// be done when everything to come is known, and losses, detection and pauses are paid as policies pay them. A decision's regret is what
// it leaves of that. Not for policies: they do not know what is to come.
#pragma once

#include <vector>

#include "trials/trial.h"

namespace optimus {

class TrialValues {
 public:
  explicit TrialValues(const TrialCase& one);
  // Steps from `point` to the trial's end, by option: gone to now, the best known behind this segment. The first is staying.
  std::vector<double> of_options(const TrialPoint& point) const;

 private:
  double at(std::size_t segment, int mode) const;
  double pause(int from, int to) const;
  double undone(std::size_t segment, int mode) const;  // by a loss at its begin
  double best_from(std::size_t segment, int mode) const;

  const TrialCase& one_;
  std::vector<std::vector<double>> values_;  // [segment][mode]; the last: standing still
};

}  // namespace optimus
