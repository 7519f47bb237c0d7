// Signals of a training's phase: whether its loss still falls, whether its sequences change; how noisy its gradients are is in
// plan/noise_scale.h. They say nothing about machines; another plan for other lengths may follow from them. Pure; one thread at a time.
#pragma once

#include <deque>

#include "adapt/observation.h"

namespace optimus {

// Whether the loss has stopped falling: the slope over a window, with its standard error.
class LossPlateau {
 public:
  explicit LossPlateau(int window = 200) : window_(window) {}
  void observe(double loss);
  // Over the window it falls by less than this part of itself, with some certainty (two standard errors). False until the window is full.
  bool has_stopped(double part = 0.02) const;

 private:
  int window_;
  std::deque<double> losses_;
};

// Whether sequences cost something else than before: mean square over squared mean of lengths, now against the run's first steps.
class LengthMix {
 public:
  void observe(const LengthSum& lengths);
  double change() const;  // 1: as before

 private:
  double first_ = 0, recent_ = 0;
  int steps_ = 0;
};

}  // namespace optimus
