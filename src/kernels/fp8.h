// Conversion to fp8 as a composition of ATen operations that run on every device. This is the reference
// definition of the rounding. Kernels::quantize is the fused kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include "plan/fp8.h"

namespace optimus {

at::ScalarType fp8_type(Fp8Operand operand);
// Returns x * scale in the operand's format, rounded to nearest even. Values that are too large saturate at
// the largest number, but infinity becomes NaN, so that the step gate detects it. `scale` is one fp32
// element.
at::Tensor to_fp8(const at::Tensor& x, Fp8Operand operand, const at::Tensor& scale);
// The scale that maps a maximum (one fp32 element) into the range of the operand's format, and its inverse.
// Computes fp8_exponent (plan/fp8.h) on the tensor's device, without waiting for the device.
struct Fp8Scale {
  at::Tensor scale, inverse;  // one fp32 element each
};
Fp8Scale fp8_scale_for(Fp8Operand operand, const at::Tensor& maximum);
// `maximum` (one fp32 element) becomes the maximum of itself and of |x|.
void update_maximum(const at::Tensor& x, at::Tensor& maximum);

// Destination of a tensor that is written only in fp8. y, [rows, width], and transposed, [width, rows], are
// contiguous. scale and maximum have one fp32 element each. transposed and maximum are undefined if they are
// not needed.
struct Fp8Output {
  at::Tensor y, transposed, scale, maximum;
};

}  // namespace optimus
