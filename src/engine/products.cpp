// See products.h.
#include "engine/products.h"

#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <array>

#include "base/error.h"
#include "engine/products_cuda.h"

namespace optimus {
namespace {

// While it lives ATen multiplies fp32 by its BLAS. On Arm it would go through oneDNN, which copies the weights into a workspace
// at every call: slower (68 against 74 GFLOP/s on two Neoverse-N1 cores) and an allocation as large as an activation.
class BlasOnly {
 public:
  BlasOnly() : before_(at::globalContext().userEnabledMkldnn()) {
    at::globalContext().setUserEnabledMkldnn(false);
  }
  ~BlasOnly() { at::globalContext().setUserEnabledMkldnn(before_); }
  BlasOnly(const BlasOnly&) = delete;
  BlasOnly& operator=(const BlasOnly&) = delete;

 private:
  bool before_;
};

// By ATen's products, in one element type.
class AtenProducts : public Products {
 public:
  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    ensure(!adds || !bias.defined(), "a bias is added before the product");
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

// fp32 and fp64 on a processor.
class BlasProducts final : public AtenProducts {
 public:
  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    const BlasOnly blas;
    AtenProducts::forward(x, weight, bias, y, adds);
  }
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    const BlasOnly blas;
    AtenProducts::input_gradient(dy, weight, dx, stream);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    const BlasOnly blas;
    AtenProducts::weight_gradient(dy, x, gradient, adds);
  }
};

// bf16 on a processor that multiplies it: the weight gradient is rounded once a micro-batch before it is added.
class NarrowProducts final : public AtenProducts {
 public:
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    const at::Tensor product = at::mm(dy.t(), x);
    if (adds)
      gradient.add_(product);
    else
      gradient.copy_(product);
  }
};

// bf16 or fp16 on CUDA: sums are fp32's until they are written, and rounded once. Parts of a sum would be added in 16 bits where
// ATen lets the library; and a bias that it hands over with a product whose rows are in no 16 bytes is added to the rounded
// result, in a pass of its own (seen in cuBLASLt 13.1), so here it is what the product is added to.
class WideSumProducts final : public AtenProducts {
 public:
  WideSumProducts() {
    at::globalContext().setAllowBF16ReductionCuBLAS(false);
    at::globalContext().setAllowFP16ReductionCuBLAS(false);
  }
  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    if (bias.defined()) y.copy_(bias.expand_as(y));
    AtenProducts::forward(x, weight, {}, y, adds || bias.defined());
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    if (adds)
      at::addmm_out(gradient, gradient, dy.t(), x, at::kFloat);
    else
      at::mm_out(gradient, dy.t(), x, at::kFloat);
  }
};

// bf16 or fp16 on a processor without such products: operands are widened into buffers of ours, the product is fp32's.
class WideningProducts final : public Products {
 public:
  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    at::Tensor result = room(2, y);
    if (adds) {
      result.copy_(y);
      straight_.forward(widened(0, x), widened(1, weight), {}, result, true);
    } else {
      straight_.forward(widened(0, x), widened(1, weight), bias.defined() ? widened(3, bias) : at::Tensor(),
                        result, false);
    }
    y.copy_(result);
  }
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    at::Tensor result = room(2, dx);
    if (stream.defined()) result.copy_(stream);
    straight_.input_gradient(widened(0, dy), widened(1, weight), result,
                             stream.defined() ? result : at::Tensor());
    dx.copy_(result);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    straight_.weight_gradient(widened(0, dy), widened(2, x), gradient, adds);
  }
  std::int64_t bytes() const override {
    std::int64_t total = 0;
    for (const at::Tensor& buffer : buffers_)
      if (buffer.defined()) total += static_cast<std::int64_t>(buffer.nbytes());
    return total;
  }

 private:
  // Grows in the first step, then stays.
  at::Tensor room(std::size_t index, const at::Tensor& like) {
    at::Tensor& buffer = buffers_[index];
    if (!buffer.defined() || buffer.numel() < like.numel()) buffer = at::empty({like.numel()}, at::kFloat);
    return buffer.narrow(0, 0, like.numel()).view(like.sizes());
  }
  at::Tensor widened(std::size_t index, const at::Tensor& tensor) {
    at::Tensor result = room(index, tensor);
    result.copy_(tensor);
    return result;
  }
  BlasProducts straight_;
  std::array<at::Tensor, 4> buffers_;
};

bool has_products_of(at::ScalarType element) {
#if defined(__x86_64__)
  if (element == at::kBFloat16) return __builtin_cpu_supports("avx512bf16");
#endif
  (void)element;
  return false;
}

}  // namespace

void Products::forward_onto(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& stream, at::Tensor& y) {
  if (bias.defined())
    at::add_out(y, stream, bias);
  else
    y.copy_(stream);
  forward(x, weight, {}, y, /*adds=*/true);
}

bool Products::input_gradient_through(Activation, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                      at::Tensor&) {
  return false;
}

bool Products::takes_gradients(const at::Tensor&, std::int64_t) const { return false; }
bool Products::has_taken(const at::Tensor&) const { return false; }
std::optional<Fp8Room> Products::input_room(const at::Tensor&, const at::Tensor&, bool) { return {}; }
void Products::take_gradient(Activation, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, at::Tensor&) {
  ensure(false, "a gradient for products that take none");
}

std::unique_ptr<Products> make_products(at::Device device, at::ScalarType element, const Path& record) {
  const bool is_wide = element == at::kFloat || element == at::kDouble;
#ifdef OPTIMUS_CUDA
  if (device.is_cuda() && !is_wide)
    return make_cuda_products(device, element, record, std::make_unique<WideSumProducts>());
#endif
  (void)record;
  if (device.is_cuda()) return std::make_unique<AtenProducts>();
  if (is_wide) return std::make_unique<BlasProducts>();
  if (has_products_of(element)) return std::make_unique<NarrowProducts>();
  return std::make_unique<WideningProducts>();
}

}  // namespace optimus
