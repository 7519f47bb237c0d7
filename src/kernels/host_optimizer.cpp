// Operations on flat buffers of gradients, masters and moments: the gradient norm, AdamW, and type
// conversion.
#include <numeric>
#include <vector>

#include "kernels/host.h"
#include "kernels/host_lanes.h"
#include "kernels/host_rows.h"

namespace optimus {
namespace {

// The constants of AdamW for one step, in the type used for arithmetic.
template <typename Number>
struct AdamFactors {
  Number beta1, one_minus_beta1, beta2, one_minus_beta2, decay, rate, inverse_root, epsilon, scale;

  AdamFactors(const AdamOptions& options, double* step_scalars)
      : beta1(static_cast<Number>(options.beta1)),
        one_minus_beta1(static_cast<Number>(1 - options.beta1)),
        beta2(static_cast<Number>(options.beta2)),
        one_minus_beta2(static_cast<Number>(1 - options.beta2)),
        decay(static_cast<Number>(1 - step_scalar(step_scalars, StepScalar::learning_rate) *
                                          options.weight_decay)),
        rate(static_cast<Number>(step_scalar(step_scalars, StepScalar::rate))),
        inverse_root(static_cast<Number>(step_scalar(step_scalars, StepScalar::inverse_root))),
        epsilon(static_cast<Number>(options.epsilon)),
        scale(static_cast<Number>(step_scalar(step_scalars, StepScalar::factor))) {}
};

template <typename Number>
struct AdamState {
  const Number* gradient;
  Number *master, *first_moment, *second_moment;
};

// Returns a * b + c, rounded once if the CPU supports fused multiply-add. The operation is explicit, because
// the compiler could otherwise fuse different products of a sum in the vectorized loop and in the scalar
// tail. The bits would then depend on where a range begins and ends. Updates that are repeated on another
// rank (redundant copies, pre-copy) must be bit-identical.
template <typename Number>
inline Number fused(Number a, Number b, Number c) {
#if defined(__FP_FAST_FMA) && defined(__FP_FAST_FMAF)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// The weight may be the master itself.
template <typename T, typename Number>
void adamw_range(const AdamFactors<Number>& of, const AdamState<Number>& state, std::int64_t begin,
                 std::int64_t end, T* weight) {
  const AdamFactors<Number> factors = of;  // a local copy, which no store below can alias
  const Number* gradients = state.gradient;
  Number *master_weights = state.master, *first_moments = state.first_moment,
         *second_moments = state.second_moment;
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const Number gradient = gradients[i] * factors.scale;
    const Number first = fused(factors.beta1, first_moments[i], factors.one_minus_beta1 * gradient);
    const Number second =
        fused(factors.beta2, second_moments[i], factors.one_minus_beta2 * gradient * gradient);
    const Number divisor = fused(std::sqrt(second), factors.inverse_root, factors.epsilon);
    const Number master = fused(master_weights[i], factors.decay, -factors.rate * (first / divisor));
    first_moments[i] = first, second_moments[i] = second, master_weights[i] = master;
    store(weight[i], static_cast<Wide<T>>(master));
  }
}

template <typename Number>
double square_sum_of(const Number* values, std::int64_t count) {
  constexpr std::int64_t kPart = 1 << 16;  // fixed, so that the sum does not depend on the number of threads
  std::vector<double> parts(static_cast<std::size_t>((count + kPart - 1) / kPart));
  at::parallel_for(0, static_cast<std::int64_t>(parts.size()), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      const Number* begin = values + part * kPart;
      parts[static_cast<std::size_t>(part)] =
          lane_sum<double>(std::min(kPart, count - part * kPart), [=](std::int64_t i) {
            const auto value = static_cast<double>(load(begin[i]));
            return value * value;
          });
    }
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

}  // namespace

void HostKernels::add_square_sum(const at::Tensor& flat, at::Tensor& sum) const {
  ensure(sum.numel() == 1, "square sum: expected one element, got {}", sum.numel());
  with_element_type(flat.scalar_type(), [&]<typename T>(T) {
    *flat_data<double>(sum) += square_sum_of(flat_data<T>(flat), flat.numel());
  });
}

void HostKernels::pass_gate(const GateOptions& options, at::Tensor& step_scalars) const {
  ensure(step_scalars.numel() == kNumStepScalars, "expected {} step scalars, got {}", kNumStepScalars,
         step_scalars.numel());
  compute_gate(options, flat_data<double>(step_scalars));
}

void HostKernels::adamw(const AdamOptions& options, const at::Tensor& step_scalars,
                        const at::Tensor& gradient, at::Tensor& master, at::Tensor& first_moment,
                        at::Tensor& second_moment, at::Tensor& weight) const {
  constexpr std::int64_t kMinElementsPerThread = 8192;
  auto* scalars = step_scalars.data_ptr<double>();
  if (step_scalar(scalars, StepScalar::is_finite) == 0) return;
  ensure(gradient.scalar_type() == master.scalar_type(),
         "type {} of the gradients does not match type {} of the masters",
         c10::toString(gradient.scalar_type()), c10::toString(master.scalar_type()));
  with_element_type(weight.scalar_type(), [&]<typename T>(T) {
    using W = Wide<T>;
    const AdamFactors<W> factors(options, scalars);
    const AdamState<W> state{flat_data<W>(gradient), flat_data<W>(master), flat_data<W>(first_moment),
                             flat_data<W>(second_moment)};
    T* weights = flat_data<T>(weight);
    at::parallel_for(0, master.numel(), kMinElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
      adamw_range(factors, state, begin, end, weights);
    });
  });
}

// For any pair of types, ATen's copy is a single vectorized pass.
void HostKernels::convert(const at::Tensor& from, at::Tensor& to) const { to.copy_(from); }

}  // namespace optimus
