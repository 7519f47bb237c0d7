// Detects changes of the training phase: the loss stops falling, or sequence lengths change. See
// plan/noise_scale.h for the gradient noise scale. These signals do not depend on the machines. Pure; one
// thread at a time.
#pragma once

#include <deque>

#include "adapt/observation.h"

namespace optimus {

// Detects that the loss has stopped falling, from its slope over a window of steps and the standard error of
// the slope.
class LossPlateau {
 public:
  explicit LossPlateau(int window = 200) : window_(window) {}
  void observe(double loss);
  // Returns true if the loss falls over the window by less than the fraction `part` of its mean, even if the
  // true slope is two standard errors steeper. Returns false until the window is full.
  bool has_stopped(double part = 0.02) const;

 private:
  int window_;
  std::deque<double> losses_;
};

// Detects changes in the cost of sequences: compares E[length^2] / E[length]^2 of recent steps with that of
// the first steps.
class LengthMix {
 public:
  void observe(const LengthSum& lengths);
  double change() const;  // recent value divided by the first one; 1 means no change

 private:
  double first_ratio_ = 0, recent_ratio_ = 0;
  int steps_ = 0;
};

}  // namespace optimus
