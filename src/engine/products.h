// The products of a layer: y = x W^T, its input gradient and its weight gradient. Matrices are [out, in]; activations
// [rows, width], rows may be strided. Weight gradients are added inside the product to accumulators of the wide type.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace optimus {

class Products {
 public:
  virtual ~Products() = default;
  // y = x W^T + bias (may be undefined). When `adds`, y holds something that the product is added to (bias must be undefined).
  virtual void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
                       bool adds = false) = 0;
  // dx = dy W, or dx += dy W.
  virtual void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                              bool adds = false) = 0;
  // gradient += dy^T x.
  virtual void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient) = 0;
  // Bytes that it holds beside what it is given.
  virtual std::int64_t bytes() const { return 0; }
};

// As the device and element type need: straight; through fp32 on processors that cannot multiply bf16 or fp16 (the values
// are the same as with fp32 accumulation inside the product); with gradients summed in fp32 inside the product on CUDA.
std::unique_ptr<Products> make_products(at::Device device, at::ScalarType element);

}  // namespace optimus
