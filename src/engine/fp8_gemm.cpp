// See fp8_gemm.h.
#include "engine/fp8_gemm.h"

#include <ATen/TensorOperators.h>

#include "kernels/fp8.h"

namespace optimus {
namespace {

// Computes fp8 GEMMs by rounding the operands to fp8 and multiplying them in the element type.
class RoundedGemm final : public Gemm {
 public:
  RoundedGemm(const Fp8GemmServices& services, int layer, LayerGemm layer_gemm)
      : gemm_(services.gemm), scales_(services.scales), layer_(layer), layer_gemm_(layer_gemm) {}

  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    gemm_.forward(rounded(x, Fp8Operand::input), rounded(weight, Fp8Operand::weight), bias, y, adds);
  }
  void forward_with_residual(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& stream, at::Tensor& y) override {
    gemm_.forward_with_residual(rounded(x, Fp8Operand::input), rounded(weight, Fp8Operand::weight), bias,
                                stream, y);
  }
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    gemm_.input_gradient(rounded(dy, Fp8Operand::gradient), rounded(weight, Fp8Operand::weight), dx, stream);
  }
  bool input_gradient_through_activation(Activation kind, const at::Tensor& dy, const at::Tensor& weight,
                                         const at::Tensor& x, at::Tensor& dx) override {
    return gemm_.input_gradient_through_activation(kind, rounded(dy, Fp8Operand::gradient),
                                                   rounded(weight, Fp8Operand::weight), x, dx);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    gemm_.weight_gradient(rounded(dy, Fp8Operand::gradient), rounded(x, Fp8Operand::input), gradient, adds);
  }

 private:
  at::Tensor rounded(const at::Tensor& tensor, Fp8Operand operand) {
    const int slot = fp8_slot(layer_, layer_gemm_, operand);
    const bool is_measured_already = operand == Fp8Operand::weight && scales_.has_rounded_weights(layer_);
    if (!is_measured_already) scales_.measure(slot, tensor);
    if (!scales_.uses_fp8()) return tensor;
    const Fp8Scale scale = scales_.scale_for(slot, tensor);
    return rounded_to_fp8(tensor, operand, scale.scale, scale.inverse);
  }

  Gemm& gemm_;
  Fp8Scales& scales_;
  const int layer_;
  const LayerGemm layer_gemm_;
};

}  // namespace

at::Tensor rounded_to_fp8(const at::Tensor& tensor, Fp8Operand operand, const at::Tensor& scale,
                          const at::Tensor& inverse) {
  const at::ScalarType wide = tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (to_fp8(tensor, operand, scale).to(wide) * inverse.to(wide)).to(tensor.scalar_type());
}

std::unique_ptr<Gemm> make_rounded_gemm(const Fp8GemmServices& services, int layer, LayerGemm layer_gemm) {
  return std::make_unique<RoundedGemm>(services, layer, layer_gemm);
}

std::unique_ptr<Gemm> make_fp8_gemm(const Fp8GemmServices& services, int layer, LayerGemm layer_gemm) {
#ifdef OPTIMUS_CUDA
  if (services.gemm.autotuner() != nullptr) return make_cuda_fp8_gemm(services, layer, layer_gemm);
#endif
  return make_rounded_gemm(services, layer, layer_gemm);
}

}  // namespace optimus
