// The products of a layer: y = x W^T, its input gradient and its weight gradient. Matrices are [out, in]; activations
// [rows, width], rows may be strided. Weight gradients are added inside the product to accumulators of the wide type.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "base/file.h"
#include "kernels/fp8.h"
#include "model/spec.h"

namespace optimus {

class LtChoices;

class Products {
 public:
  virtual ~Products() = default;
  // y = x W^T + bias (may be undefined). When `adds`, y holds something that the product is added to (bias must be undefined); on
  // CUDA in 16 bits the product is rounded before.
  virtual void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
                       bool adds = false) = 0;
  // y = x W^T + bias + stream; y and stream share nothing.
  virtual void forward_onto(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& stream, at::Tensor& y);
  // dx = dy W + stream (may be undefined); dx and stream share nothing.
  virtual void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                              const at::Tensor& stream = {}) = 0;
  // dx = (dy W) * kind'(x), where x went through an activation function: one pass less than on its own. false: these products
  // cannot, and nothing was done.
  virtual bool input_gradient_through(Activation kind, const at::Tensor& dy, const at::Tensor& weight,
                                      const at::Tensor& x, at::Tensor& dx);
  // gradient += dy^T x, or gradient = dy^T x.
  virtual void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient,
                               bool adds = true) = 0;
  // cuBLASLt's, where products are by it (lt_choices.h), for those in 8 bits; else null.
  virtual LtChoices* choices() { return nullptr; }
  // Bytes that it holds beside what it is given.
  virtual std::int64_t bytes() const { return 0; }

  // A gradient that comes through an activation function and that nobody but these products needs may stay with them, in their own
  // form. takes_gradients: whether they take one now, for this weight and of so many rows. take_gradient: dy of the calls to come with `gradient`, which itself is not written, is kind'(x) * d_activated (with a gate: the
  // gate's columns, then x's); its columns are added to bias_gradient (may be undefined). has_taken: until its weight gradient.
  virtual bool takes_gradients(const at::Tensor& weight, std::int64_t rows) const;
  virtual void take_gradient(Activation kind, const at::Tensor& d_activated, const at::Tensor& x,
                             const at::Tensor& gate, const at::Tensor& gradient, at::Tensor& bias_gradient);
  virtual bool has_taken(const at::Tensor& gradient) const;
  // An input that nobody but these products reads may be written in their own form, into its own memory: two copies in 8 bits are as
  // long as one in 16. Where to, for calls to come with `input`; nothing: they take none now, and it is written as it is.
  // transposes: its writer can write both.
  virtual std::optional<Fp8Room> input_room(const at::Tensor& input, const at::Tensor& weight,
                                            bool transposes);
};

// As the device and element type need: straight; through fp32 on processors that cannot multiply bf16 or fp16 (the values
// are the same as with fp32 accumulation inside the product); by measured algorithms on CUDA (products_cuda.cpp), with gradients
// summed in fp32 inside the product. record: the file that keeps what was measured; empty: none does.
std::unique_ptr<Products> make_products(at::Device device, at::ScalarType element, const Path& record = {});

}  // namespace optimus
