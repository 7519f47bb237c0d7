// The scalars of a step, an array of kNumStepScalars fp64 values. They are on the device, so that a step need
// not wait for the host. The host writes the first scalars before a step and reads all of them after it.
// During the step, blocks add to the sums. The step gate, which comes between gradients and updates, then
// computes the last scalars, which the updates read. This file does not depend on libtorch, because CUDA code
// includes it.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define OPTIMUS_HOST_DEVICE __host__ __device__
#else
#define OPTIMUS_HOST_DEVICE
#endif

namespace optimus {

enum class StepScalar {
  learning_rate,
  loss_scale,   // factor of the loss; 1 except in fp16
  num_updates,  // number of updates before this step; the step gate increments it
  num_targets,  // number of targets with a loss in the step
  num_tokens,
  loss_sum,     // sum of the losses of these targets
  square_sum,   // sum of squared gradients, each logical element counted once
  moment_sum,   // sum of gradients times first moments, each element once; 0 if not requested
  grad_norm,    // norm of the gradient of the mean loss, before clipping
  is_finite,    // 1 if loss and norm are finite; if 0, the update is skipped
  factor,       // factor that normalizes gradients to the mean loss and clips them
  rate,         // learning_rate / (1 - beta1^step), which includes the first moment's bias correction
  inverse_root  // 1 / sqrt(1 - beta2^step): factor of the root of the second moment
};
constexpr int kNumStepScalars = 13;
// The sums are adjacent, so that one collective sums them over devices.
constexpr StepScalar kFirstSum = StepScalar::num_targets;
constexpr int kNumSums = 5;
static_assert(static_cast<int>(StepScalar::moment_sum) == static_cast<int>(kFirstSum) + kNumSums - 1);

struct GateOptions {
  double beta1 = 0.9, beta2 = 0.95;
  double clip = 0;  // maximum gradient norm; 0 disables clipping
};

OPTIMUS_HOST_DEVICE inline double& step_scalar(double* step_scalars, StepScalar scalar) {
  return step_scalars[static_cast<int>(scalar)];
}

// Computes the scalars that follow the sums. The sums must already cover all devices.
OPTIMUS_HOST_DEVICE inline void compute_gate(const GateOptions& options, double* step_scalars) {
  const double mean_divisor =
      step_scalar(step_scalars, StepScalar::loss_scale) * step_scalar(step_scalars, StepScalar::num_targets);
  const double norm = std::sqrt(step_scalar(step_scalars, StepScalar::square_sum)) / mean_divisor;
  // x - x is 0 only for finite x.
  const double loss = step_scalar(step_scalars, StepScalar::loss_sum);
  const bool is_finite = norm - norm == 0 && loss - loss == 0;
  step_scalar(step_scalars, StepScalar::grad_norm) = norm;
  step_scalar(step_scalars, StepScalar::is_finite) = is_finite ? 1 : 0;
  if (!is_finite) return;
  const double step = ++step_scalar(step_scalars, StepScalar::num_updates);
  double factor = 1 / mean_divisor;
  if (options.clip > 0 && options.clip / (norm + 1e-6) < 1) factor *= options.clip / (norm + 1e-6);
  step_scalar(step_scalars, StepScalar::factor) = factor;
  step_scalar(step_scalars, StepScalar::rate) =
      step_scalar(step_scalars, StepScalar::learning_rate) / (1 - std::pow(options.beta1, step));
  step_scalar(step_scalars, StepScalar::inverse_root) = 1 / std::sqrt(1 - std::pow(options.beta2, step));
}

}  // namespace optimus
