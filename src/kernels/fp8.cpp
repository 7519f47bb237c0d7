// See fp8.h.
#include "kernels/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>

#include <limits>

namespace optimus {

at::ScalarType fp8_type(Fp8Operand operand) {
  return operand == Fp8Operand::gradient ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

at::Tensor to_fp8(const at::Tensor& x, Fp8Operand operand, const at::Tensor& scale) {
  const double largest = operand == Fp8Operand::gradient ? 57344 : 448;
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor values = x.to(wide);
  // Adds values * 0, which is NaN for infinity. clamp() alone would turn infinity into the largest number.
  return (at::clamp(values * scale.to(wide), -largest, largest) + values * 0).to(fp8_type(operand));
}

namespace {

// Returns 2^exponent for |exponent| <= 126. It is built from the bits of an fp32 number, so it is exact on
// every device.
at::Tensor power_of_two(const at::Tensor& exponent) {
  return ((exponent + 127) * (1 << 23)).to(at::kInt).view(at::kFloat);
}

}  // namespace

Fp8Scale fp8_scale_for(Fp8Operand operand, const at::Tensor& maximum) {
  const int max_exponent = operand == Fp8Operand::gradient ? 16 : 9;
  const auto [fraction, exponent] = at::frexp(maximum);
  const at::Tensor scale_exponent =
      at::clamp(max_exponent - exponent - (fraction > 0.875).to(at::kInt), -126, 126);
  const at::Tensor final_exponent = scale_exponent * (maximum != 0).to(at::kInt);
  return {power_of_two(final_exponent), power_of_two(-final_exponent)};
}

void update_maximum(const at::Tensor& x, at::Tensor& maximum) {
  // The infinity norm is the largest |x|, and it is computed in one pass.
  constexpr double kInfinityNorm = std::numeric_limits<double>::infinity();
  if (x.numel() > 0)
    at::maximum_out(maximum, maximum, at::linalg_vector_norm(x, kInfinityNorm).to(at::kFloat));
}

}  // namespace optimus
