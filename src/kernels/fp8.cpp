// See fp8.h.
#include "kernels/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>

#include <limits>

#include "kernels/kernels.h"

namespace optimus {

at::ScalarType fp8_type(Fp8Operand operand) {
  return operand == Fp8Operand::gradient ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

at::Tensor to_fp8(const at::Tensor& x, Fp8Operand operand, const at::Tensor& scale) {
  const double largest = operand == Fp8Operand::gradient ? 57344 : 448;
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor values = x.to(wide);
  // Infinity times zero is NaN; clamp alone would turn infinity into the largest number.
  return (at::clamp(values * scale.to(wide), -largest, largest) + values * 0).to(fp8_type(operand));
}

namespace {

// 2^exponent, |exponent| <= 126, built from the bits of an fp32 number: exact on every device.
at::Tensor power_of_two(const at::Tensor& exponent) {
  return ((exponent + 127) * (1 << 23)).to(at::kInt).view(at::kFloat);
}

}  // namespace

Fp8Scale fp8_scale_for(Fp8Operand operand, const at::Tensor& maximum) {
  const int largest = operand == Fp8Operand::gradient ? 16 : 9;
  const auto [fraction, exponent] = at::frexp(maximum);
  const at::Tensor own = at::clamp(largest - exponent - (fraction > 0.875).to(at::kInt), -126, 126);
  const at::Tensor chosen = own * (maximum != 0).to(at::kInt);
  return {power_of_two(chosen), power_of_two(-chosen)};
}

void update_maximum(const at::Tensor& x, at::Tensor& maximum) {
  constexpr double kLargest =
      std::numeric_limits<double>::infinity();  // the infinity norm is the maximum: one pass
  if (x.numel() > 0) at::maximum_out(maximum, maximum, at::linalg_vector_norm(x, kLargest).to(at::kFloat));
}

void Kernels::quantize(Fp8Operand operand, const at::Tensor& x, const at::Tensor& scale, at::Tensor& y,
                       at::Tensor& transposed, at::Tensor& maximum) const {
  if (maximum.defined()) update_maximum(x, maximum);
  const at::Tensor narrow = to_fp8(x, operand, scale);
  if (y.defined()) y.copy_(narrow);
  if (transposed.defined()) transposed.copy_(narrow.t());
}

void Kernels::quantize_activation_gradient(Activation kind, const at::Tensor& dy, const at::Tensor& x,
                                           const at::Tensor& gate, const at::Tensor& scale, at::Tensor& y,
                                           at::Tensor& transposed, at::Tensor& maximum,
                                           at::Tensor& sum) const {
  const std::int64_t width = x.size(1);
  const at::Tensor gradient = at::empty({x.size(0), gate.defined() ? 2 * width : width}, x.options());
  at::Tensor dx = gradient.narrow(1, gradient.size(1) - width, width), d_gate;
  if (gate.defined()) d_gate = gradient.narrow(1, 0, width);
  activation_backward(kind, dy, x, gate, dx, d_gate);
  if (sum.defined()) add_rows(gradient, sum);
  quantize(Fp8Operand::gradient, gradient, scale, y, transposed, maximum);
}

void Kernels::norm_to_fp8(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias, at::Tensor& statistics, Fp8Output& output) const {
  at::Tensor y = at::empty(x.sizes(), x.options());
  norm(options, x, weight, bias, y, statistics);
  quantize(Fp8Operand::input, y, output.scale, output.y, output.transposed, output.maximum);
}

void Kernels::activation_to_fp8(Activation kind, const at::Tensor& x, const at::Tensor& gate,
                                Fp8Output& output) const {
  at::Tensor y = at::empty(x.sizes(), x.options());
  activation(kind, x, gate, y);
  quantize(Fp8Operand::input, y, output.scale, output.y, output.transposed, output.maximum);
}

void Kernels::transpose_fp8(const at::Tensor& from, at::Tensor& to) const { to.copy_(from.t()); }

}  // namespace optimus
