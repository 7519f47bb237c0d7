// The scalars of a step, kept on the device so that a step need not wait for the host: an array of
// kNumStepScalars fp64 values. The host writes the first ones before a step and reads all of them after it;
// blocks add to the sums; the gate between gradients and updates computes the last ones, which updates
// read. Independent of libtorch, because CUDA code includes this file.
#pragma once

#include <cmath>

#include "kernels/host_device.h"

namespace optimus {

enum class StepScalar {
  learning_rate,
  loss_scale,   // factor of the loss; 1 except in fp16
  num_updates,  // number of updates before this step; the gate increments it
  num_targets,  // number of targets with a loss in the step
  num_tokens,
  loss_sum,     // sum of the losses of these targets
  square_sum,   // sum of squared gradients, each logical element counted once
  moment_sum,   // sum of gradients times first moments, each element once; 0 if not requested
  grad_norm,    // norm of the gradient of the mean loss, before clipping
  is_finite,    // 1 if loss and norm are finite; otherwise 0, and no update is made
  factor,       // factor of gradients: normalizes to the mean loss and clips
  rate,         // learning_rate / (1 - beta1^step): with the first moment's bias correction
  inverse_root  // 1 / sqrt(1 - beta2^step): factor of the root of the second moment
};
constexpr int kNumStepScalars = 13;
// These are adjacent: one collective sums them over devices.
constexpr StepScalar kFirstSum = StepScalar::num_targets;
constexpr int kNumSums = 5;
static_assert(static_cast<int>(StepScalar::moment_sum) == static_cast<int>(kFirstSum) + kNumSums - 1);

struct GateOptions {
  double beta1 = 0.9, beta2 = 0.95;
  double clip = 0;  // largest gradient norm; 0 for no clipping
};

OPTIMUS_HOST_DEVICE inline double& number(double* numbers, StepScalar which) {
  return numbers[static_cast<int>(which)];
}

// Computes the scalars after the sums, which must be those over all devices.
OPTIMUS_HOST_DEVICE inline void compute_gate(const GateOptions& options, double* numbers) {
  const double to_mean = number(numbers, StepScalar::loss_scale) * number(numbers, StepScalar::num_targets);
  const double norm = std::sqrt(number(numbers, StepScalar::square_sum)) / to_mean;
  // x - x is 0 only for finite x.
  const double loss = number(numbers, StepScalar::loss_sum);
  const bool is_finite = norm - norm == 0 && loss - loss == 0;
  number(numbers, StepScalar::grad_norm) = norm;
  number(numbers, StepScalar::is_finite) = is_finite ? 1 : 0;
  if (!is_finite) return;
  const double step = ++number(numbers, StepScalar::num_updates);
  double factor = 1 / to_mean;
  if (options.clip > 0 && options.clip / (norm + 1e-6) < 1) factor *= options.clip / (norm + 1e-6);
  number(numbers, StepScalar::factor) = factor;
  number(numbers, StepScalar::rate) =
      number(numbers, StepScalar::learning_rate) / (1 - std::pow(options.beta1, step));
  number(numbers, StepScalar::inverse_root) = 1 / std::sqrt(1 - std::pow(options.beta2, step));
}

}  // namespace optimus
