// The numbers of a step that stay where the kernels are, so that a step need not wait for the host: fp64, kNumStepNumbers of
// them in a row. The host writes the first ones before a step and reads them all behind it; blocks add to the sums; the gate
// between gradients and updates makes the last ones, which updates read. Knows no libtorch: CUDA code includes it.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define OPTIMUS_ON_BOTH __host__ __device__
#else
#define OPTIMUS_ON_BOTH
#endif

namespace optimus {

enum class StepNumber {
  learning_rate,
  loss_scale,   // what the loss was multiplied by; 1 but in fp16
  num_updates,  // taken before this step; the gate counts
  num_counted,  // targets of the whole step
  num_tokens,
  loss_sum,     // over counted targets
  square_sum,   // of all gradients, each logical element once
  moment_sum,   // likewise, of gradients times first moments; 0 where nobody asks
  grad_norm,    // of the mean loss
  is_finite,    // 1; 0: no update happens
  factor,       // that gradients are multiplied by: to the mean loss, and clipped
  rate,         // the learning rate, corrected for the first moment's beginning at 0
  inverse_root  // what the root of the second moment is multiplied by, likewise
};
constexpr int kNumStepNumbers = 13;
// These lie side by side: devices add theirs up in one collective.
constexpr StepNumber kFirstSum = StepNumber::num_counted;
constexpr int kNumSums = 5;
static_assert(static_cast<int>(StepNumber::moment_sum) == static_cast<int>(kFirstSum) + kNumSums - 1);

struct GateOptions {
  double beta1 = 0.9, beta2 = 0.95;
  double clip = 0;  // the largest gradient norm; 0: any
};

OPTIMUS_ON_BOTH inline double& number(double* numbers, StepNumber which) {
  return numbers[static_cast<int>(which)];
}

// What the gate makes of the numbers.
OPTIMUS_ON_BOTH inline void work_out_gate(const GateOptions& options, double* numbers) {
  const double to_mean = number(numbers, StepNumber::loss_scale) * number(numbers, StepNumber::num_counted);
  const double norm = std::sqrt(number(numbers, StepNumber::square_sum)) / to_mean;
  // Differences of a number and itself: infinity and NaN have none that is 0.
  const double loss = number(numbers, StepNumber::loss_sum);
  const bool is_finite = norm - norm == 0 && loss - loss == 0;
  number(numbers, StepNumber::grad_norm) = norm;
  number(numbers, StepNumber::is_finite) = is_finite ? 1 : 0;
  if (!is_finite) return;
  const double step = ++number(numbers, StepNumber::num_updates);
  double factor = 1 / to_mean;
  if (options.clip > 0 && options.clip / (norm + 1e-6) < 1) factor *= options.clip / (norm + 1e-6);
  number(numbers, StepNumber::factor) = factor;
  number(numbers, StepNumber::rate) =
      number(numbers, StepNumber::learning_rate) / (1 - std::pow(options.beta1, step));
  number(numbers, StepNumber::inverse_root) = 1 / std::sqrt(1 - std::pow(options.beta2, step));
}

}  // namespace optimus
