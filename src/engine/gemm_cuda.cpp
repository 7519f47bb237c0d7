// The GEMMs of a layer on CUDA in bf16 and fp16, by cuBLASLt. Each shape uses the algorithm that was fastest
// on this device. Algorithms are timed at first use, and the fastest is stored in a file for the next run.
// Cases that cuBLASLt does not support use ATen's GEMMs.
//
// Our matrices are row-major, but cuBLASLt's are column-major. The code therefore computes y = x W^T as y^T =
// W x^T, because y^T in column-major order has the same memory layout as y.
#include "engine/gemm_cuda.h"

#ifdef OPTIMUS_CUDA
#include <ATen/ops/empty_like.h>

#include "engine/lt_autotuner.h"

namespace optimus {
namespace {

class CudaGemm final : public Gemm {
 public:
  CudaGemm(at::Device device, at::ScalarType element, const Path& algorithm_path, std::unique_ptr<Gemm> plain)
      : element_(element), fallback_(std::move(plain)), autotuner_(device, algorithm_path) {}

  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    for (const Span part : parts_of(y)) {
      const at::Tensor weight_part = rows(weight, part), bias_part = rows(bias, part);
      at::Tensor output_part = columns(y, part);
      if (!multiply(x, weight_part, bias_part, adds ? output_part : at::Tensor(), output_part))
        fallback_->forward(x, weight_part, bias_part, output_part, adds);
    }
  }
  void forward_with_residual(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& stream, at::Tensor& y) override {
    if (!multiply(x, weight, bias, stream, y)) fallback_->forward_with_residual(x, weight, bias, stream, y);
  }
  // Does not accumulate in place, because if C is D, the library rounds the sums to 16 bits and accumulates
  // in memory (observed with all algorithms of cuBLASLt 13.1 on an H200).
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    const std::vector<Span> parts = parts_of(dy);
    if (parts.size() == 1) return whole_input_gradient(dy, weight, dx, stream);
    // The few remaining columns come first, so that their contribution is rounded while it is small.
    at::Tensor partial_dx = at::empty_like(dx);
    whole_input_gradient(columns(dy, parts[1]), rows(weight, parts[1]), partial_dx, stream);
    whole_input_gradient(columns(dy, parts[0]), rows(weight, parts[0]), dx, partial_dx);
  }
  bool input_gradient_through_activation(Activation kind, const at::Tensor& dy, const at::Tensor& weight,
                                         const at::Tensor& x, at::Tensor& dx) override {
    if (kind != Activation::gelu_tanh || !all_aligned(dy, weight, x, dx)) return false;
    LtShape shape = input_gradient_shape(dy, weight, dx);
    shape.c_stride = dx.stride(0), shape.aux_stride = x.stride(0), shape.epilogue = LtEpilogue::gelu_gradient;
    return autotuner_.run(shape, {weight.data_ptr(), dy.data_ptr(), nullptr, dx.data_ptr(), x.data_ptr()});
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    for (const Span part : parts_of(dy)) {
      at::Tensor output_part = rows(gradient, part);
      whole_weight_gradient(columns(dy, part), x, output_part, adds);
    }
  }
  std::int64_t bytes() const override { return autotuner_.bytes(); }
  LtAutotuner* autotuner() override { return &autotuner_; }

 private:
  // Returns the ranges of output columns that are computed by one GEMM each. The library has no fast kernels
  // for matrices without 16-byte alignment, such as the logits of GPT-2's 50,257 tokens. If the row stride is
  // aligned, a separate GEMM computes the last few columns.
  static std::vector<Span> parts_of(const at::Tensor& y) {
    constexpr std::int64_t kMinSplitOutputs = 4096, kUnit = 64;
    const std::int64_t outputs = y.size(1), aligned_outputs = outputs / kUnit * kUnit;
    if (outputs < kMinSplitOutputs || outputs % 8 == 0 || y.stride(0) % 8 != 0) return {{0, outputs}};
    return {{0, aligned_outputs}, {aligned_outputs, outputs}};
  }
  static at::Tensor rows(const at::Tensor& tensor, const Span& part) {
    return tensor.defined() ? tensor.narrow(0, part.begin, part.size()) : tensor;
  }
  static at::Tensor columns(const at::Tensor& tensor, const Span& part) {
    return tensor.narrow(1, part.begin, part.size());
  }
  void whole_input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                            const at::Tensor& stream) {
    LtShape shape = input_gradient_shape(dy, weight, dx);
    shape.has_addend = stream.defined(), shape.c_stride = stream.defined() ? stream.stride(0) : dx.stride(0);
    if (!all_aligned(dy, weight, dx, stream) ||
        !autotuner_.run(shape, {weight.data_ptr(), dy.data_ptr(),
                                stream.defined() ? stream.data_ptr() : nullptr, dx.data_ptr(), nullptr}))
      fallback_->input_gradient(dy, weight, dx, stream);
  }
  void whole_weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) {
    LtShape shape = base_shape();
    shape.m = x.size(1), shape.n = dy.size(1), shape.k = x.size(0);
    shape.a_stride = x.stride(0), shape.b_stride = dy.stride(0), shape.b_is_transposed = true;
    shape.c_stride = shape.d_stride = gradient.stride(0);
    shape.has_addend = adds, shape.is_wide = true;
    if (!all_aligned(dy, x, gradient) ||
        !autotuner_.run(shape,
                        {x.data_ptr(), dy.data_ptr(), gradient.data_ptr(), gradient.data_ptr(), nullptr}))
      fallback_->weight_gradient(dy, x, gradient, adds);
  }
  LtShape base_shape() const {
    LtShape shape;
    shape.is_half = element_ == at::kHalf;
    return shape;
  }
  LtShape input_gradient_shape(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& dx) const {
    LtShape shape = base_shape();
    shape.m = weight.size(1), shape.n = dy.size(0), shape.k = weight.size(0);
    shape.a_stride = weight.stride(0), shape.b_stride = dy.stride(0), shape.d_stride = dx.stride(0);
    return shape;
  }
  // y = x W^T + bias + addend. Returns false if cuBLASLt does not support it.
  bool multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                const at::Tensor& addend, at::Tensor& y) {
    if (!all_aligned(x, weight, bias, addend, y)) return false;
    LtShape shape = base_shape();
    shape.m = weight.size(0), shape.n = x.size(0), shape.k = x.size(1);
    shape.a_stride = weight.stride(0), shape.a_is_transposed = true, shape.b_stride = x.stride(0);
    shape.d_stride = y.stride(0);
    shape.has_addend = addend.defined(), shape.c_stride = addend.defined() ? addend.stride(0) : y.stride(0);
    shape.epilogue = bias.defined() ? LtEpilogue::bias : LtEpilogue::none;
    return autotuner_.run(
        shape, {weight.data_ptr(), x.data_ptr(), addend.defined() ? addend.data_ptr() : nullptr, y.data_ptr(),
                bias.defined() ? bias.data_ptr() : nullptr});
  }

  const at::ScalarType element_;
  const std::unique_ptr<Gemm> fallback_;
  LtAutotuner autotuner_;
};

}  // namespace

std::unique_ptr<Gemm> make_cuda_gemm(at::Device device, at::ScalarType element, const Path& algorithm_path,
                                     std::unique_ptr<Gemm> plain) {
  return std::make_unique<CudaGemm>(device, element, algorithm_path, std::move(plain));
}

}  // namespace optimus
#endif
