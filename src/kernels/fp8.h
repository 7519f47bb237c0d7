// To 8 bits, as a composition of ATen operations: what rounding means, on every device. The kernel that does it in one pass is
// Kernels::quantise.
#pragma once

#include <ATen/core/Tensor.h>

#include "plan/fp8.h"

namespace optimus {

at::ScalarType fp8_type(Fp8Operand operand);
// x * scale in the operand's format: rounded to nearest even; too large ones become the largest, infinite ones NaN, so that the gate
// sees them. scale: one fp32 element.
at::Tensor to_fp8(const at::Tensor& x, Fp8Operand operand, const at::Tensor& scale);
// The scale that takes a maximum, one fp32 element, to what the operand's format holds, and its inverse: plan/fp8.h's fp8_exponent where
// the tensor is, so that nobody waits for the device.
struct Fp8Scale {
  at::Tensor scale, inverse;  // one fp32 element each
};
Fp8Scale fp8_scale_for(Fp8Operand operand, const at::Tensor& maximum);
// maximum, one fp32 element, becomes the largest of itself and |x|.
void keep_largest(const at::Tensor& x, at::Tensor& maximum);

// Where a tensor goes in 8 bits, and nowhere else: y [rows, width] and transposed [width, rows] are contiguous, scale and maximum one fp32
// element each; transposed and maximum may be undefined: not wanted.
struct Fp8Room {
  at::Tensor y, transposed, scale, maximum;
};

}  // namespace optimus
