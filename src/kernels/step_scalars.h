// The scalars of a step, kept on the device so that a step need not wait for the host: an array of
// kNumStepScalars fp64 values. The host writes the first ones before a step and reads all of them after it;
// blocks add to the sums; the gate between gradients and updates computes the last ones, which updates read.
// Independent of libtorch, because CUDA code includes it.
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
  num_updates,  // number of updates before this step; the gate increments it
  num_targets,  // targets of the whole step
  num_tokens,
  loss_sum,     // over counted targets
  square_sum,   // of all gradients, each logical element counted once
  moment_sum,   // sum of gradients times first moments, each element once; 0 if not requested
  grad_norm,    // of the mean loss
  is_finite,    // 1; 0: no update is made
  factor,       // factor of gradients: normalizes to the mean loss and clips
  rate,         // the learning rate with the bias correction of the first moment
  inverse_root  // factor of the root of the second moment: its bias correction
};
constexpr int kNumStepScalars = 13;
// These are adjacent: one collective sums them over devices.
constexpr StepScalar kFirstSum = StepScalar::num_targets;
constexpr int kNumSums = 5;
static_assert(static_cast<int>(StepScalar::moment_sum) == static_cast<int>(kFirstSum) + kNumSums - 1);

struct GateOptions {
  double beta1 = 0.9, beta2 = 0.95;
  double clip = 0;  // the largest gradient norm; 0: no clipping
};

OPTIMUS_HOST_DEVICE inline double& number(double* numbers, StepScalar which) {
  return numbers[static_cast<int>(which)];
}

// The computation of the gate.
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
