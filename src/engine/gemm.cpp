// Default implementations of the optional functions of Gemm.
#include "engine/gemm.h"

#include <ATen/ops/add.h>

#include "base/error.h"

namespace optimus {

void Gemm::forward_with_residual(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                 const at::Tensor& stream, at::Tensor& y) {
  if (bias.defined())
    at::add_out(y, stream, bias);
  else
    y.copy_(stream);
  forward(x, weight, {}, y, /*adds=*/true);
}

bool Gemm::input_gradient_through_activation(Activation, const at::Tensor&, const at::Tensor&,
                                             const at::Tensor&, at::Tensor&) {
  return false;
}

bool Gemm::accepts_gradients(const at::Tensor&, std::int64_t) const { return false; }
bool Gemm::has_stored_gradient(const at::Tensor&) const { return false; }
std::optional<Fp8Output> Gemm::input_destination(const at::Tensor&, const at::Tensor&, bool) { return {}; }
void Gemm::accept_gradient(Activation, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                           const at::Tensor&, at::Tensor&) {
  ensure(false, "this GEMM implementation cannot store a gradient in its own format");
}

}  // namespace optimus
