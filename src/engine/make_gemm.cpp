// Implements make_gemm.h: GEMMs by ATen, with fp32 sums for the types that need them.
#include "engine/make_gemm.h"

#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <array>

#include "base/error.h"
#include "engine/gemm_cuda.h"

namespace optimus {
namespace {

// Makes ATen use its BLAS for fp32 GEMMs during the lifetime of this object. On Arm, ATen would use oneDNN,
// which copies the weights into a workspace on every call. That is slower (68 vs. 74 GFLOP/s on two
// Neoverse-N1 cores) and needs an allocation as large as an activation.
class BlasGuard {
 public:
  BlasGuard() : previous_(at::globalContext().userEnabledMkldnn()) {
    at::globalContext().setUserEnabledMkldnn(false);
  }
  ~BlasGuard() { at::globalContext().setUserEnabledMkldnn(previous_); }
  BlasGuard(const BlasGuard&) = delete;
  BlasGuard& operator=(const BlasGuard&) = delete;

 private:
  bool previous_;
};

// GEMMs by ATen in which operands and results have the same element type.
class AtenGemm : public Gemm {
 public:
  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    ensure(!adds || !bias.defined(), "a bias cannot be combined with accumulation");
    if (adds)
      at::addmm_out(y, y, x, weight.t());
    else if (bias.defined())
      at::addmm_out(y, bias, x, weight.t());
    else
      at::mm_out(y, x, weight.t());
  }
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    if (stream.defined())
      at::addmm_out(dx, stream, dy, weight);
    else
      at::mm_out(dx, dy, weight);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    if (adds)
      at::addmm_out(gradient, gradient, dy.t(), x);
    else
      at::mm_out(gradient, dy.t(), x);
  }
};

// GEMMs in fp32 and fp64 on a CPU.
class BlasGemm final : public AtenGemm {
 public:
  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    const BlasGuard blas;
    AtenGemm::forward(x, weight, bias, y, adds);
  }
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    const BlasGuard blas;
    AtenGemm::input_gradient(dy, weight, dx, stream);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    const BlasGuard blas;
    AtenGemm::weight_gradient(dy, x, gradient, adds);
  }
};

// GEMMs in bf16 on a CPU that supports them. The weight gradient is rounded once per micro-batch before it is
// accumulated.
class Bf16Gemm final : public AtenGemm {
 public:
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    const at::Tensor rounded_gradient = at::mm(dy.t(), x);
    if (adds)
      gradient.add_(rounded_gradient);
    else
      gradient.copy_(rounded_gradient);
  }
};

// GEMMs in bf16 or fp16 on CUDA. Sums are fp32 and are rounded once, when they are written. By default, ATen
// allows the library to add partial sums in 16 bits. If the rows of the matrix are not 16-byte aligned, the
// library also adds a bias to the already rounded result in a separate pass (observed with cuBLASLt 13.1).
// The bias is therefore copied to the output first, and the GEMM accumulates into the output.
class Fp32SumGemm final : public AtenGemm {
 public:
  Fp32SumGemm() {
    at::globalContext().setAllowBF16ReductionCuBLAS(false);
    at::globalContext().setAllowFP16ReductionCuBLAS(false);
  }
  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    if (bias.defined()) y.copy_(bias.expand_as(y));
    AtenGemm::forward(x, weight, {}, y, adds || bias.defined());
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    if (adds)
      at::addmm_out(gradient, gradient, dy.t(), x, at::kFloat);
    else
      at::mm_out(gradient, dy.t(), x, at::kFloat);
  }
};

// GEMMs in bf16 or fp16 on a CPU that does not support them. Operands are converted to fp32 buffers, and the
// GEMM runs in fp32.
class WideningGemm final : public Gemm {
 public:
  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    at::Tensor result = buffer_for(2, y);
    if (adds) {
      result.copy_(y);
      blas_.forward(widened(0, x), widened(1, weight), {}, result, true);
    } else {
      blas_.forward(widened(0, x), widened(1, weight), bias.defined() ? widened(3, bias) : at::Tensor(),
                    result, false);
    }
    y.copy_(result);
  }
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    at::Tensor result = buffer_for(2, dx);
    if (stream.defined()) result.copy_(stream);
    blas_.input_gradient(widened(0, dy), widened(1, weight), result,
                         stream.defined() ? result : at::Tensor());
    dx.copy_(result);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    blas_.weight_gradient(widened(0, dy), widened(2, x), gradient, adds);
  }
  std::int64_t bytes() const override {
    std::int64_t total = 0;
    for (const at::Tensor& buffer : buffers_)
      if (buffer.defined()) total += static_cast<std::int64_t>(buffer.nbytes());
    return total;
  }

 private:
  // The buffer grows during the first step and then keeps its size.
  at::Tensor buffer_for(std::size_t index, const at::Tensor& like) {
    at::Tensor& buffer = buffers_[index];
    if (!buffer.defined() || buffer.numel() < like.numel()) buffer = at::empty({like.numel()}, at::kFloat);
    return buffer.narrow(0, 0, like.numel()).view(like.sizes());
  }
  at::Tensor widened(std::size_t index, const at::Tensor& tensor) {
    at::Tensor result = buffer_for(index, tensor);
    result.copy_(tensor);
    return result;
  }
  BlasGemm blas_;
  std::array<at::Tensor, 4> buffers_;
};

bool has_native_gemm(at::ScalarType element) {
#if defined(__x86_64__)
  if (element == at::kBFloat16) return __builtin_cpu_supports("avx512bf16");
#endif
  (void)element;
  return false;
}

}  // namespace

std::unique_ptr<Gemm> make_gemm(at::Device device, at::ScalarType element, const Path& algorithm_path) {
  const bool is_wide = element == at::kFloat || element == at::kDouble;
#ifdef OPTIMUS_CUDA
  if (device.is_cuda() && !is_wide)
    return make_cuda_gemm(device, element, algorithm_path, std::make_unique<Fp32SumGemm>());
#endif
  (void)algorithm_path;
  if (device.is_cuda()) return std::make_unique<AtenGemm>();
  if (is_wide) return std::make_unique<BlasGemm>();
  if (has_native_gemm(element)) return std::make_unique<Bf16Gemm>();
  return std::make_unique<WideningGemm>();
}

}  // namespace optimus
