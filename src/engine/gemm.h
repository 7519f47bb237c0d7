// The GEMMs of a linear layer: y = x W^T, its input gradient, and its weight gradient. Weights are [out, in].
// Activations are [rows, width], and rows may be strided. Weight gradients are accumulated inside the GEMM in
// the wide type.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "kernels/fp8.h"
#include "model/spec.h"

namespace optimus {

class LtAutotuner;

class Gemm {
 public:
  virtual ~Gemm() = default;
  // y = x W^T + bias, where `bias` may be undefined. If `adds`, y += x W^T instead, and `bias` must be
  // undefined. With 16-bit types on CUDA, the product is rounded before it is added.
  virtual void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
                       bool adds = false) = 0;
  // y = x W^T + bias + stream; y and stream must not alias.
  virtual void forward_with_residual(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                     const at::Tensor& stream, at::Tensor& y);
  // dx = dy W + stream, where `stream` may be undefined; dx and stream must not alias.
  virtual void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                              const at::Tensor& stream = {}) = 0;
  // dx = (dy W) * kind'(x), where x is the input of an activation function. This saves a separate pass. If
  // the implementation does not support this, does nothing and returns false.
  virtual bool input_gradient_through_activation(Activation kind, const at::Tensor& dy,
                                                 const at::Tensor& weight, const at::Tensor& x,
                                                 at::Tensor& dx);
  // gradient += dy^T x if `adds`, otherwise gradient = dy^T x.
  virtual void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient,
                               bool adds = true) = 0;
  // Returns the cuBLASLt autotuner of this implementation (lt_autotuner.h) for use by fp8 GEMMs. Null without
  // cuBLASLt.
  virtual LtAutotuner* autotuner() { return nullptr; }
  // Returns the bytes of memory that this object has allocated, such as workspaces.
  virtual std::int64_t bytes() const { return 0; }

  // If only the GEMMs of an implementation read the gradient through an activation function, the
  // implementation can compute and store this gradient in its own format. accepts_gradients() returns whether
  // it can do so for this weight and number of rows. After accept_gradient(), calls that pass `gradient` as
  // dy use kind'(x) * d_activated instead. With a gate, these are the gradients of the gate's columns,
  // followed by those of x. `gradient` itself is not written, and its column sums are added to
  // `bias_gradient` (may be undefined). has_stored_gradient() returns whether `gradient` is stored in this
  // way, until its weight gradient is computed.
  virtual bool accepts_gradients(const at::Tensor& weight, std::int64_t rows) const;
  virtual void accept_gradient(Activation kind, const at::Tensor& d_activated, const at::Tensor& x,
                               const at::Tensor& gate, const at::Tensor& gradient, at::Tensor& bias_gradient);
  virtual bool has_stored_gradient(const at::Tensor& gradient) const;
  // An input that only these GEMMs read can be written in fp8 into the memory of `input`, where two fp8
  // copies need the space of one 16-bit tensor. Returns the destination, which later calls with `input` read,
  // or nullopt if the input must be written in the element type. `transposes` specifies whether the input's
  // producer can also write the transposed copy.
  virtual std::optional<Fp8Output> input_destination(const at::Tensor& input, const at::Tensor& weight,
                                                     bool transposes);
};

}  // namespace optimus
