// See rope.h.
#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace optimus {
namespace {

// Llama 3 scaling: low frequencies are divided by the factor, high frequencies remain unchanged, and
// frequencies in between are interpolated by their number of rotations over the original context length.
double llama3_scaled(double frequency, const RopeScaling& scaling) {
  const double positions = static_cast<double>(scaling.original_max_positions);
  const double turns = positions * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double blend =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelSpec& spec) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < spec.head_dim / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(spec.head_dim);
    double frequency = std::pow(spec.rope_theta, -exponent);
    switch (spec.rope_scaling.kind) {
      case RopeScalingKind::none:
        break;
      case RopeScalingKind::linear:
        frequency /= spec.rope_scaling.factor;
        break;
      case RopeScalingKind::llama3:
        frequency = llama3_scaled(frequency, spec.rope_scaling);
        break;
    }
    result.push_back(frequency);
  }
  return result;
}

}  // namespace optimus
