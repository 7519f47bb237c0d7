// Signals of the training's phase: whether the loss still falls, and whether sequence lengths change. The
// noise of gradients is in plan/noise_scale.h. These signals do not depend on machines. Pure; one thread at a
// time.
#pragma once

#include <deque>

#include "adapt/observation.h"

namespace optimus {

// Whether the loss has stopped falling: its slope over a window of steps, with the slope's standard error.
class LossPlateau {
 public:
  explicit LossPlateau(int window = 200) : window_(window) {}
  void observe(double loss);
  // True if the loss falls over the window by less than this fraction of itself, even if the true slope is
  // two standard errors steeper. False until the window is full.
  bool has_stopped(double part = 0.02) const;

 private:
  int window_;
  std::deque<double> losses_;
};

// Tells whether the cost of sequences has changed: compares E[length^2] / E[length]^2 of recent steps with
// that of the first steps.
class LengthMix {
 public:
  void observe(const LengthSum& lengths);
  double change() const;  // recent value divided by the first one; 1 means no change

 private:
  double first_length_ = 0, recent_length_ = 0;
  int steps_ = 0;
};

}  // namespace optimus
