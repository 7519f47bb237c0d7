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
  // The loss falls over the window by less than this part of itself, with a certainty of two standard errors.
  // False until the window is full.
  bool has_stopped(double part = 0.02) const;

 private:
  int window_;
  std::deque<double> losses_;
};

// Whether the cost of sequences has changed: the mean square of lengths over their squared mean, now against
// the first steps.
class LengthMix {
 public:
  void observe(const LengthSum& lengths);
  double change() const;  // 1: no change

 private:
  double first_length_ = 0, recent_length_ = 0;
  int steps_ = 0;
};

}  // namespace optimus
