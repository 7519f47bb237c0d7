// The gradient noise scale (the "simple" one of McCandlish et al. 2018): tr(covariance) / |gradient|^2, in
// samples, where the covariance is that of the gradients of single samples. A batch much smaller than the
// noise scale wastes no samples, but a much larger batch does. It is measured on fixed groups of samples,
// never on the samples of one device, so it does not depend on the plan. A pure value type.
#pragma once

#include <cstdint>
#include <optional>

namespace optimus {

// The measurements of one optimizer update. Gradients are those of the mean loss over the batch, before
// clipping.
struct UpdateStatistics {
  double gradient_squared = 0;  // |gradient|^2
  double moment_product = 0;    // inner product of the gradient and Adam's first moment before the update
  double samples = 0;           // number of samples in the batch
  double clip_factor = 1;       // clipping factor of the gradient before it is added to the moment
  double beta1 = 0.9;
};

struct NoiseScale {
  double gradient = 0, noise = 0;  // slow moving averages of |gradient|^2 and tr(covariance)
  double moment = 0;               // total weight of all gradients in Adam's first moment
  std::int64_t num_steps = 0;

  // Adds a measurement from gradients over two different numbers of samples: `group_squared` is the mean over
  // the groups of |gradient of a group|^2, each over `group_samples` samples; `squared` is |gradient of the
  // batch|^2 over `samples`.
  void add_measurement(double group_squared, double group_samples, double squared, double samples);
  // Adds a measurement from the training's own updates, with the batches as groups. The moment is a mean of
  // the gradients of earlier batches, whose noise is independent of the noise of this batch, so the expected
  // product is |gradient|^2 times the total weight of the gradients in the moment. If the gradient changes
  // direction within the memory of the moment (1 / (1 - beta1) steps), the product is smaller and the scale
  // is overestimated.
  void add_measurement(const UpdateStatistics& update);
  // The noise scale in samples. It has no value before 20 measurements, or if an average is not positive
  // because the noise exceeds the signal.
  std::optional<double> samples() const;
  bool operator==(const NoiseScale&) const = default;

 private:
  void add(double gradient_squared, double covariance);
};

}  // namespace optimus
