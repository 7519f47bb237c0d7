// The gradient noise scale ("simple" one, McCandlish et al. 2018): tr(covariance) / |gradient|^2, in samples: batches much smaller than it
// waste nothing, much larger ones do. Measured on fixed groups of samples, never on what one device happens to have, so it does not
// depend on the plan. A value; pure.
#pragma once

#include <cstdint>
#include <optional>

namespace optimus {

// What one update of a training tells. Gradients are of the mean loss over the batch, before clipping.
struct SeenUpdate {
  double squared = 0;  // |gradient|^2
  double product = 0;  // gradient * Adam's first moment, as that was before the update
  double samples = 0;  // of the batch
  double factor = 1;   // what the gradient was multiplied by, to clip it, before it joined the moment
  double beta1 = 0.9;
};

struct NoiseScale {
  double gradient = 0, noise = 0;  // slow means of |gradient|^2 and tr(covariance)
  double moment = 0;               // the weight of all gradients in Adam's first moment
  std::int64_t num_steps = 0;

  // From two sizes. `group_squared`: mean over the groups of |gradient of a group|^2; `squared`: |gradient of the batch|^2.
  void see(double group_squared, double group_samples, double squared, double samples);
  // From a training's own updates. The groups are its batches: the moment is a mean of the gradients of batches before, whose noise has
  // nothing to do with this one's, so their product is |gradient|^2 on average. While the gradient turns within the moment's memory
  // (1 / (1 - beta1) steps) the product is less, and the scale is taken as larger than it is.
  void see(const SeenUpdate& update);
  // Nothing before 20 steps, or where noise hides the gradient.
  std::optional<double> samples() const;
  bool operator==(const NoiseScale&) const = default;

 private:
  void add(double gradient_squared, double covariance);
};

}  // namespace optimus
