// See noise_scale.h.
#include "plan/noise_scale.h"

namespace optimus {

// Averages |gradient|^2 and tr(covariance) separately over steps, because their quotient in a single step has
// no finite mean. Both averages start at 0 and have the same rate, so the initialization bias cancels in
// their quotient.
void NoiseScale::add(double gradient_squared, double covariance) {
  constexpr double kRate = 0.02;
  gradient += kRate * (gradient_squared - gradient), noise += kRate * (covariance - noise);
  ++num_steps;
}

// E|G_b|^2 = |G|^2 + S / b, where G_b is the gradient of b samples and S = tr(covariance). Two values of b
// therefore determine |G|^2 and S.
void NoiseScale::add_measurement(double group_squared, double group_samples, double squared, double samples) {
  if (!(samples > group_samples) || !(group_samples > 0)) return;
  add((samples * squared - group_samples * group_squared) / (samples - group_samples),
      (group_squared - squared) / (1 / group_samples - 1 / samples));
}

void NoiseScale::add_measurement(const UpdateStatistics& update) {
  if (moment > 0) {
    const double gradient_squared = update.moment_product / moment;
    add(gradient_squared, (update.gradient_squared - gradient_squared) * update.samples);
  }
  moment = update.beta1 * moment + (1 - update.beta1) * update.clip_factor;
}

std::optional<double> NoiseScale::samples() const {
  if (num_steps < 20 || gradient <= 0 || noise <= 0) return std::nullopt;
  return noise / gradient;
}

}  // namespace optimus
