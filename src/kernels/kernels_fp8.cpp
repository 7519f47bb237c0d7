// Implements the fp8 functions of kernels.h with the reference operations of fp8.h, for devices without fused
// kernels.
#include "kernels/kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "kernels/fp8.h"

namespace optimus {

void Kernels::quantize(Fp8Operand operand, const at::Tensor& x, const at::Tensor& scale, at::Tensor& y,
                       at::Tensor& transposed, at::Tensor& maximum) const {
  if (maximum.defined()) update_maximum(x, maximum);
  const at::Tensor quantized = to_fp8(x, operand, scale);
  if (y.defined()) y.copy_(quantized);
  if (transposed.defined()) transposed.copy_(quantized.t());
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
