// fp8 GEMMs on Hopper's tensor cores, by cuBLASLt. cuBLASLt requires the reduction dimension to be contiguous
// in both fp8 operands:
//
//   y  = x W^T     x [rows, in]       W [out, in]       as stored
//   dx = dy W      dy [rows, out]     W^T [in, out]     W transposed
//   dW = dy^T x    dy^T [out, rows]   x^T [in, rows]    both transposed
//
// A weight is therefore quantized in both orientations once per step, at its first use. A gradient is
// quantized in both orientations in one pass, and the transposed copy is saved for the weight gradient. An
// input that only these GEMMs read never exists in 16 bits, because norms and activation functions write it
// directly in fp8 into the input's own memory (input_destination). If its producer has not written the
// transposed copy, it is transposed for the weight gradient. Other inputs are quantized in the forward pass,
// and again, transposed, for the weight gradient. This needs one more pass but saves one byte per element of
// saved activations. Cases that cuBLASLt or the kernel does not support (rows or columns not a multiple of
// 16, no history yet) use the reference implementation.
#include "engine/fp8_gemm.h"

#ifdef OPTIMUS_CUDA
#include <ATen/ops/empty.h>

#include <map>
#include <utility>

#include "base/error.h"
#include "engine/lt_autotuner.h"
#include "kernels/fp8.h"

namespace optimus {
namespace {

struct Fp8Copies {
  at::Tensor plain, transposed;  // [rows, width], [width, rows]
  at::Tensor inverse;            // inverse scale: one fp32 element
  bool is_only_copy = false;     // whether the tensor itself was never written
};

// An fp8 operand of a GEMM.
struct Operand {
  at::Tensor values, inverse;
};

class CudaFp8Gemm final : public Gemm {
 public:
  CudaFp8Gemm(const Fp8GemmServices& services, int layer, LayerGemm layer_gemm)
      : services_(services),
        layer_(layer),
        layer_gemm_(layer_gemm),
        reference_(make_rounded_gemm(services, layer, layer_gemm)) {}

  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    if (!multiply(x, weight, bias, adds ? y : at::Tensor(), y)) reference_->forward(x, weight, bias, y, adds);
  }
  void forward_with_residual(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& stream, at::Tensor& y) override {
    if (!multiply(x, weight, bias, stream, y)) reference_->forward_with_residual(x, weight, bias, stream, y);
  }
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    Fp8Copies* gradient = find_stored_gradient(dy);
    if (gradient == nullptr) {
      if (!can_use_fp8(dy, weight) || !all_aligned(dx, stream))
        return reference_->input_gradient(dy, weight, dx, stream);
      gradient =
          &store_gradient(dy, quantized(dy, Fp8Operand::gradient, /*plain=*/true, /*transposed=*/true));
    }
    LtShape shape = shape_of(weight.size(1), dy.size(0), weight.size(0));
    shape.b_is_gradient = true, shape.d_stride = dx.stride(0);
    shape.has_addend = stream.defined(), shape.c_stride = stream.defined() ? stream.stride(0) : dx.stride(0);
    has_input_gradient_ = run(shape, {weight_of(weight).transposed, weight_.inverse},
                              {gradient->plain, gradient->inverse}, stream, dx, {});
    gradient->plain.reset();
    if (has_input_gradient_) return;
    ensure(!gradient->is_only_copy, "cuBLASLt no longer supports a GEMM that it ran before");
    reference_->input_gradient(dy, weight, dx, stream);
  }
  // Not used for fp8, because cuBLASLt's fp8 GEMM takes three times as long with a fused GELU gradient as
  // without it (cuBLASLt 13.1).
  bool input_gradient_through_activation(Activation kind, const at::Tensor& dy, const at::Tensor& weight,
                                         const at::Tensor& x, at::Tensor& dx) override {
    return !can_use_fp8(dy, weight) && reference_->input_gradient_through_activation(kind, dy, weight, x, dx);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    const Fp8Copies stored = take_stored_gradient(dy);
    if (!can_use_fp8(dy, x) || !all_aligned(gradient)) {
      ensure(!stored.is_only_copy && find_fp8_input(x) == nullptr,
             "an operand exists only in fp8, but this GEMM does not run in fp8");
      return reference_->weight_gradient(dy, x, gradient, adds);
    }
    const Fp8Copies transposed =
        stored.transposed.defined()
            ? stored
            : quantized(dy, Fp8Operand::gradient, /*plain=*/false, /*transposed=*/true);
    const Operand input = transposed_input(x);
    LtShape shape = shape_of(x.size(1), dy.size(1), x.size(0));
    shape.b_is_gradient = true, shape.is_wide = true, shape.has_addend = adds;
    shape.c_stride = shape.d_stride = gradient.stride(0);
    has_weight_gradient_ =
        run(shape, input, {transposed.transposed, transposed.inverse}, gradient, gradient, {});
    if (has_weight_gradient_) return;
    ensure(!stored.is_only_copy && find_fp8_input(x) == nullptr,
           "cuBLASLt no longer supports a GEMM that it ran before");
    reference_->weight_gradient(dy, x, gradient, adds);
  }

  // Accepts gradients only if cuBLASLt has already run both GEMMs that read the gradient, because the
  // reference implementation cannot read a gradient that exists only in fp8.
  bool accepts_gradients(const at::Tensor& weight, std::int64_t rows) const override {
    return has_input_gradient_ && has_weight_gradient_ && services_.scales.uses_fp8() &&
           services_.scales.is_scale_known(Fp8Operand::gradient) && rows > 0 && rows % 16 == 0 &&
           is_in_tiles(weight);
  }
  void accept_gradient(Activation kind, const at::Tensor& d_activated, const at::Tensor& x,
                       const at::Tensor& gate, const at::Tensor& gradient,
                       at::Tensor& bias_gradient) override {
    Fp8Copies copies = allocate_copies(gradient, Fp8Operand::gradient, true, true);
    copies.is_only_copy = true, copies.inverse = services_.scales.inverse(slot(Fp8Operand::gradient));
    at::Tensor maximum = services_.scales.maximum(slot(Fp8Operand::gradient));
    services_.kernels.quantize_activation_gradient(kind, d_activated, x, gate,
                                                   services_.scales.scale(slot(Fp8Operand::gradient)),
                                                   copies.plain, copies.transposed, maximum, bias_gradient);
    store_gradient(gradient, std::move(copies));
  }
  bool has_stored_gradient(const at::Tensor& gradient) const override {
    const auto match = stored_gradients_.find(gradient.data_ptr());
    return match != stored_gradients_.end() && stored_gradients_step_ == services_.scales.step_number() &&
           match->second.is_only_copy;
  }
  // As for gradients, returns a destination only if cuBLASLt has already run both GEMMs that read the input.
  std::optional<Fp8Output> input_destination(const at::Tensor& input, const at::Tensor& weight,
                                             bool transposes) override {
    if (std::exchange(inputs_step_, services_.scales.step_number()) != services_.scales.step_number())
      inputs_.clear();
    inputs_.erase(input.data_ptr());
    const bool accepts = has_forward_ && has_weight_gradient_ &&
                         services_.scales.is_scale_known(Fp8Operand::input) && can_use_fp8(input, weight) &&
                         input.is_contiguous() && input.element_size() == 2 && all_aligned(input);
    if (!accepts) return {};
    const at::Tensor flat = input.view({-1}).view(fp8_type(Fp8Operand::input));
    const std::int64_t rows = input.size(0), width = input.size(1), count = rows * width;
    Fp8Copies copies{.plain = flat.narrow(0, 0, count).view({rows, width}),
                     .transposed = {},
                     .inverse = services_.scales.inverse(slot(Fp8Operand::input))};
    if (transposes) copies.transposed = flat.narrow(0, count, count).view({width, rows});
    inputs_[input.data_ptr()] = copies;
    return Fp8Output{copies.plain, copies.transposed, services_.scales.scale(slot(Fp8Operand::input)),
                     services_.scales.maximum(slot(Fp8Operand::input))};
  }

 private:
  static bool is_in_tiles(const at::Tensor& tensor) {
    return tensor.size(0) > 0 && tensor.size(0) % 16 == 0 && tensor.size(1) % 16 == 0;
  }
  bool can_use_fp8(const at::Tensor& a, const at::Tensor& b) const {
    return services_.scales.uses_fp8() && is_in_tiles(a) && is_in_tiles(b);
  }
  int slot(Fp8Operand operand) const { return fp8_slot(layer_, layer_gemm_, operand); }

  static Fp8Copies allocate_copies(const at::Tensor& tensor, Fp8Operand operand, bool plain,
                                   bool transposed) {
    const at::TensorOptions options = tensor.options().dtype(fp8_type(operand));
    Fp8Copies copies;
    if (plain) copies.plain = at::empty(tensor.sizes(), options);
    if (transposed) copies.transposed = at::empty({tensor.size(1), tensor.size(0)}, options);
    return copies;
  }
  Fp8Copies quantized(const at::Tensor& tensor, Fp8Operand operand, bool plain, bool transposed) const {
    Fp8Copies copies = allocate_copies(tensor, operand, plain, transposed);
    fill(tensor, operand, copies);
    return copies;
  }
  // Stores the fp8 copies of a gradient by its address, between the two GEMMs that read it. If weight
  // gradients are computed later, several micro-batches may have stored gradients.
  Fp8Copies& store_gradient(const at::Tensor& gradient, Fp8Copies copies) {
    if (std::exchange(stored_gradients_step_, services_.scales.step_number()) !=
        services_.scales.step_number())
      stored_gradients_.clear();
    return stored_gradients_[gradient.data_ptr()] = std::move(copies);
  }
  Fp8Copies* find_stored_gradient(const at::Tensor& gradient) {
    const auto match = stored_gradients_.find(gradient.data_ptr());
    const bool is_stored = match != stored_gradients_.end() &&
                           stored_gradients_step_ == services_.scales.step_number() &&
                           match->second.plain.defined() && match->second.plain.sizes() == gradient.sizes();
    return is_stored ? &match->second : nullptr;
  }
  Fp8Copies take_stored_gradient(const at::Tensor& gradient) {
    if (stored_gradients_step_ != services_.scales.step_number()) stored_gradients_.clear();
    const auto match = stored_gradients_.find(gradient.data_ptr());
    if (match == stored_gradients_.end()) return {};
    Fp8Copies copies = std::move(match->second);
    stored_gradients_.erase(match);
    return copies;
  }
  // Returns the fp8 copies that were written into the memory of this input in this step, or null if there are
  // none.
  const Fp8Copies* find_fp8_input(const at::Tensor& input) const {
    const auto match = inputs_.find(input.data_ptr());
    return match == inputs_.end() || inputs_step_ != services_.scales.step_number() ? nullptr
                                                                                    : &match->second;
  }
  Operand transposed_input(const at::Tensor& input) const {
    const Fp8Copies* fp8_input = find_fp8_input(input);
    if (fp8_input == nullptr) {
      const Fp8Copies copies = quantized(input, Fp8Operand::input, /*plain=*/false, /*transposed=*/true);
      return {copies.transposed, copies.inverse};
    }
    if (fp8_input->transposed.defined()) return {fp8_input->transposed, fp8_input->inverse};
    at::Tensor transposed =
        allocate_copies(input, Fp8Operand::input, /*plain=*/false, /*transposed=*/true).transposed;
    services_.kernels.transpose_fp8(fp8_input->plain, transposed);
    return {transposed, fp8_input->inverse};
  }
  void fill(const at::Tensor& tensor, Fp8Operand operand, Fp8Copies& copies) const {
    const bool is_measured_already =
        operand == Fp8Operand::weight && services_.scales.has_rounded_weights(layer_);
    at::Tensor maximum = is_measured_already ? at::Tensor() : services_.scales.maximum(slot(operand));
    const Fp8Scale scale = services_.scales.scale_for(slot(operand), tensor);
    copies.inverse = scale.inverse;
    services_.kernels.quantize(operand, tensor, scale.scale, copies.plain, copies.transposed, maximum);
  }
  const Fp8Copies& weight_of(const at::Tensor& weight) {
    if (!weight_.plain.defined() || weight_.plain.sizes() != weight.sizes())
      weight_ = quantized(weight, Fp8Operand::weight, true, true);
    else if (weight_step_ != services_.scales.step_number())
      fill(weight, Fp8Operand::weight, weight_);
    weight_step_ = services_.scales.step_number();
    return weight_;
  }

  LtShape shape_of(std::int64_t m, std::int64_t n, std::int64_t k) const {
    LtShape shape;
    shape.m = m, shape.n = n, shape.k = k, shape.a_stride = shape.b_stride = k;
    shape.a_is_transposed = true, shape.uses_fp8 = true;
    return shape;
  }
  // y = x W^T + bias + addend. Returns false if fp8 cannot be used.
  bool multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                const at::Tensor& addend, at::Tensor& y) {
    const Fp8Copies* fp8_input = find_fp8_input(x);
    if (!can_use_fp8(x, weight) || !all_aligned(bias, addend, y)) {
      ensure(fp8_input == nullptr, "an operand exists only in fp8, but this GEMM does not run in fp8");
      return false;
    }
    const Fp8Copies input = fp8_input != nullptr
                                ? *fp8_input
                                : quantized(x, Fp8Operand::input, /*plain=*/true, /*transposed=*/false);
    LtShape shape = shape_of(weight.size(0), x.size(0), x.size(1));
    shape.d_stride = y.stride(0);
    shape.has_addend = addend.defined(), shape.c_stride = addend.defined() ? addend.stride(0) : y.stride(0);
    shape.epilogue = bias.defined() ? LtEpilogue::bias : LtEpilogue::none;
    has_forward_ =
        run(shape, {weight_of(weight).plain, weight_.inverse}, {input.plain, input.inverse}, addend, y, bias);
    ensure(has_forward_ || fp8_input == nullptr, "cuBLASLt no longer supports a GEMM that it ran before");
    return has_forward_;
  }
  bool run(const LtShape& shape, const Operand& a, const Operand& b, const at::Tensor& addend,
           const at::Tensor& to, const at::Tensor& bias) const {
    const auto data = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; };
    return services_.gemm.autotuner()->run(
        shape, {a.values.data_ptr(), b.values.data_ptr(), data(addend), to.data_ptr(), data(bias),
                a.inverse.data_ptr(), b.inverse.data_ptr()});
  }

  const Fp8GemmServices services_;
  const int layer_;
  const LayerGemm layer_gemm_;
  const std::unique_ptr<Gemm> reference_;
  Fp8Copies weight_;
  std::int64_t weight_step_ = -1;  // Fp8Scales::step_number() when it was quantized
  std::map<const void*, Fp8Copies> stored_gradients_;
  std::int64_t stored_gradients_step_ = -1;  // Fp8Scales::step_number() of these gradients
  std::map<const void*, Fp8Copies> inputs_;  // by address
  std::int64_t inputs_step_ = -1;
  // Whether cuBLASLt supported the last GEMM of each kind.
  bool has_forward_ = false, has_input_gradient_ = false, has_weight_gradient_ = false;
};

}  // namespace

std::unique_ptr<Gemm> make_cuda_fp8_gemm(const Fp8GemmServices& services, int layer, LayerGemm layer_gemm) {
  return std::make_unique<CudaFp8Gemm>(services, layer, layer_gemm);
}

}  // namespace optimus
#endif
