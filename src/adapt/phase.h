// Signals of a training's phase: how noisy its gradients are, whether its loss still falls, whether its sequences change. They say
// nothing about machines; a batch ramp or another plan for other lengths may follow from them. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "adapt/observation.h"

namespace optimus {

// The gradient noise scale ("simple" one, McCandlish et al. 2018): tr(covariance) / |gradient|^2, in samples: batches much smaller
// than it waste nothing, much larger ones do. From squared norms of gradients of fixed groups of samples and of the whole batch,
// so that it does not depend on how the batch is split over devices.
class NoiseScale {
 public:
  // `group_squared`: mean over the groups of |gradient of a group|^2; `squared`: |gradient of the batch|^2.
  void see(double group_squared, double group_samples, double squared, double samples);
  // Nothing before 20 steps, or where noise hides the gradient.
  std::optional<double> samples() const;

 private:
  double gradient_ = 0, noise_ = 0;
  int steps_ = 0;
};

// Whether the loss has stopped falling: the slope over a window, with its standard error.
class LossPlateau {
 public:
  explicit LossPlateau(int window = 200) : window_(window) {}
  void see(double loss);
  // The slope is above -least a step with some certainty (two standard errors). False until the window is full.
  bool has_stopped(double least = 0) const;

 private:
  int window_;
  std::deque<double> losses_;
};

// Whether sequences cost something else than before: mean square over squared mean of lengths, now against the run's first steps.
class LengthMix {
 public:
  void see(const LengthSum& lengths);
  double change() const;  // 1: as before

 private:
  double first_ = 0, recent_ = 0;
  int steps_ = 0;
};

}  // namespace optimus
