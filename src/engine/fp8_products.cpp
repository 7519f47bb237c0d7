// See fp8_products.h.
#include "engine/fp8_products.h"

#include <ATen/TensorOperators.h>

#include "kernels/fp8.h"

namespace optimus {
namespace {

// fp8 GEMMs by rounding operands and multiplying them in the element type.
class RoundedProducts final : public Products {
 public:
  RoundedProducts(const Fp8Tools& tools, int layer, LayerProduct product)
      : products_(tools.products), scales_(tools.scales), layer_(layer), product_(product) {}

  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    products_.forward(rounded(x, Fp8Operand::input), rounded(weight, Fp8Operand::weight), bias, y, adds);
  }
  void forward_onto(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const at::Tensor& stream, at::Tensor& y) override {
    products_.forward_onto(rounded(x, Fp8Operand::input), rounded(weight, Fp8Operand::weight), bias, stream,
                           y);
  }
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    products_.input_gradient(rounded(dy, Fp8Operand::gradient), rounded(weight, Fp8Operand::weight), dx,
                             stream);
  }
  bool input_gradient_through(Activation kind, const at::Tensor& dy, const at::Tensor& weight,
                              const at::Tensor& x, at::Tensor& dx) override {
    return products_.input_gradient_through(kind, rounded(dy, Fp8Operand::gradient),
                                            rounded(weight, Fp8Operand::weight), x, dx);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    products_.weight_gradient(rounded(dy, Fp8Operand::gradient), rounded(x, Fp8Operand::input), gradient,
                              adds);
  }

 private:
  at::Tensor rounded(const at::Tensor& tensor, Fp8Operand operand) {
    const int slot = fp8_slot(layer_, product_, operand);
    const bool is_measured_already = operand == Fp8Operand::weight && scales_.has_rounded_weights(layer_);
    if (!is_measured_already) scales_.measure(slot, tensor);
    if (!scales_.is_narrow()) return tensor;
    const Fp8Scale scale = scales_.scale_for(slot, tensor);
    return rounded_to_fp8(tensor, operand, scale.scale, scale.inverse);
  }

  Products& products_;
  Fp8Scales& scales_;
  const int layer_;
  const LayerProduct product_;
};

}  // namespace

at::Tensor rounded_to_fp8(const at::Tensor& tensor, Fp8Operand operand, const at::Tensor& scale,
                          const at::Tensor& inverse) {
  const at::ScalarType wide = tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (to_fp8(tensor, operand, scale).to(wide) * inverse.to(wide)).to(tensor.scalar_type());
}

std::unique_ptr<Products> make_rounded_products(const Fp8Tools& tools, int layer, LayerProduct product) {
  return std::make_unique<RoundedProducts>(tools, layer, product);
}

std::unique_ptr<Products> make_fp8_products(const Fp8Tools& tools, int layer, LayerProduct product) {
#ifdef OPTIMUS_CUDA
  if (tools.products.choices() != nullptr) return make_cuda_fp8_products(tools, layer, product);
#endif
  return make_rounded_products(tools, layer, product);
}

}  // namespace optimus
