// fp8 GEMMs on Hopper's tensor cores, by cuBLASLt. Its fp8 GEMMs need the reduction dimension contiguous in
// both operands:
//
//   y  = x W^T     x [rows, in]       W [out, in]       as stored
//   dx = dy W      dy [rows, out]     W^T [in, out]     W transposed
//   dW = dy^T x    dy^T [out, rows]   x^T [in, rows]    both transposed
//
// A weight is therefore quantised in both orientations once per step, at its first use. A gradient is
// quantised in both orientations in one pass; the transposed copy is saved for the weight gradient. An input
// that only these GEMMs read never exists in 16 bits: norms and activation functions write it directly in
// fp8, into the input's own memory (input_room), and it is transposed for the weight gradient if its producer
// did not do that. Other inputs are quantised in the forward, and again, transposed, for the weight gradient;
// this needs one more pass but saves one byte per element of saved activations. Cases that cuBLASLt or the
// kernel do not support (rows or columns not a multiple of 16, no history yet) use the reference
// implementation.
#include "engine/fp8_products.h"

#ifdef OPTIMUS_CUDA
#include <ATen/ops/empty.h>

#include <map>
#include <utility>

#include "base/error.h"
#include "engine/lt_choices.h"
#include "kernels/fp8.h"

namespace optimus {
namespace {

struct Copies {
  at::Tensor plain, turned;   // [rows, width], [width, rows]
  at::Tensor inverse;         // inverse scale: one fp32 element
  bool is_only_here = false;  // the tensor itself was never written
};

// An fp8 operand of a GEMM.
struct Operand {
  at::Tensor values, inverse;
};

class CudaFp8Products final : public Products {
 public:
  CudaFp8Products(const Fp8Tools& tools, int layer, LayerProduct product)
      : tools_(tools),
        layer_(layer),
        product_(product),
        twin_(make_rounded_products(tools, layer, product)) {}

  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    if (!multiply(x, weight, bias, adds ? y : at::Tensor(), y)) twin_->forward(x, weight, bias, y, adds);
  }
  void forward_onto(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const at::Tensor& stream, at::Tensor& y) override {
    if (!multiply(x, weight, bias, stream, y)) twin_->forward_onto(x, weight, bias, stream, y);
  }
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    Copies* gradient = kept(dy);
    if (gradient == nullptr) {
      if (!can(dy, weight) || !all_aligned(dx, stream)) return twin_->input_gradient(dy, weight, dx, stream);
      gradient = &keep(dy, narrowed(dy, Fp8Operand::gradient, /*plain=*/true, /*turned=*/true));
    }
    LtShape shape = shape_of(weight.size(1), dy.size(0), weight.size(0));
    shape.b_is_gradient = true, shape.d_stride = dx.stride(0);
    shape.has_addend = stream.defined(), shape.c_stride = stream.defined() ? stream.stride(0) : dx.stride(0);
    has_input_gradient_ = run(shape, {weight_of(weight).turned, weight_.inverse},
                              {gradient->plain, gradient->inverse}, stream, dx, {});
    gradient->plain.reset();
    if (has_input_gradient_) return;
    ensure(!gradient->is_only_here, "cuBLASLt no longer supports a GEMM that it ran before");
    twin_->input_gradient(dy, weight, dx, stream);
  }
  // cuBLASLt's fp8 GEMM with a fused GELU gradient took three times as long as without (cuBLASLt 13.1).
  bool input_gradient_through(Activation kind, const at::Tensor& dy, const at::Tensor& weight,
                              const at::Tensor& x, at::Tensor& dx) override {
    return !can(dy, weight) && twin_->input_gradient_through(kind, dy, weight, x, dx);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    const Copies waiting = take(dy);
    if (!can(dy, x) || !all_aligned(gradient)) {
      ensure(!waiting.is_only_here && taken_input(x) == nullptr,
             "an operand exists only in fp8, but this GEMM does not run in fp8");
      return twin_->weight_gradient(dy, x, gradient, adds);
    }
    const Copies turned = waiting.turned.defined()
                              ? waiting
                              : narrowed(dy, Fp8Operand::gradient, /*plain=*/false, /*turned=*/true);
    const Operand input = turned_input(x);
    LtShape shape = shape_of(x.size(1), dy.size(1), x.size(0));
    shape.b_is_gradient = true, shape.is_wide = true, shape.has_addend = adds;
    shape.c_stride = shape.d_stride = gradient.stride(0);
    has_weight_gradient_ = run(shape, input, {turned.turned, turned.inverse}, gradient, gradient, {});
    if (has_weight_gradient_) return;
    ensure(!waiting.is_only_here && taken_input(x) == nullptr,
           "cuBLASLt no longer supports a GEMM that it ran before");
    twin_->weight_gradient(dy, x, gradient, adds);
  }

  // Only if cuBLASLt has run both GEMMs before: the reference implementation could not read a gradient that
  // exists only in fp8.
  bool takes_gradients(const at::Tensor& weight, std::int64_t rows) const override {
    return has_input_gradient_ && has_weight_gradient_ && tools_.scales.is_narrow() &&
           tools_.scales.is_known(Fp8Operand::gradient) && rows > 0 && rows % 16 == 0 && is_in_tiles(weight);
  }
  void take_gradient(Activation kind, const at::Tensor& d_activated, const at::Tensor& x,
                     const at::Tensor& gate, const at::Tensor& gradient, at::Tensor& bias_gradient) override {
    Copies copies = room_for(gradient, Fp8Operand::gradient, true, true);
    copies.is_only_here = true, copies.inverse = tools_.scales.inverse(slot(Fp8Operand::gradient));
    at::Tensor maximum = tools_.scales.maximum(slot(Fp8Operand::gradient));
    tools_.kernels.quantise_through(kind, d_activated, x, gate,
                                    tools_.scales.scale(slot(Fp8Operand::gradient)), copies.plain,
                                    copies.turned, maximum, bias_gradient);
    keep(gradient, std::move(copies));
  }
  bool has_taken(const at::Tensor& gradient) const override {
    const auto found = waiting_.find(gradient.data_ptr());
    return found != waiting_.end() && waiting_of_ == tools_.scales.number() && found->second.is_only_here;
  }
  // Only if cuBLASLt has run both GEMMs that read it before, as for gradients.
  std::optional<Fp8Room> input_room(const at::Tensor& input, const at::Tensor& weight,
                                    bool transposes) override {
    if (std::exchange(inputs_of_, tools_.scales.number()) != tools_.scales.number()) inputs_.clear();
    inputs_.erase(input.data_ptr());
    const bool takes = has_forward_ && has_weight_gradient_ && tools_.scales.is_known(Fp8Operand::input) &&
                       can(input, weight) && input.is_contiguous() && input.element_size() == 2 &&
                       all_aligned(input);
    if (!takes) return {};
    const at::Tensor flat = input.view({-1}).view(fp8_type(Fp8Operand::input));
    const std::int64_t rows = input.size(0), width = input.size(1), count = rows * width;
    Copies copies{.plain = flat.narrow(0, 0, count).view({rows, width}),
                  .turned = {},
                  .inverse = tools_.scales.inverse(slot(Fp8Operand::input))};
    if (transposes) copies.turned = flat.narrow(0, count, count).view({width, rows});
    inputs_[input.data_ptr()] = copies;
    return Fp8Room{copies.plain, copies.turned, tools_.scales.scale(slot(Fp8Operand::input)),
                   tools_.scales.maximum(slot(Fp8Operand::input))};
  }

 private:
  static bool is_in_tiles(const at::Tensor& tensor) {
    return tensor.size(0) > 0 && tensor.size(0) % 16 == 0 && tensor.size(1) % 16 == 0;
  }
  bool can(const at::Tensor& a, const at::Tensor& b) const {
    return tools_.scales.is_narrow() && is_in_tiles(a) && is_in_tiles(b);
  }
  int slot(Fp8Operand operand) const { return fp8_slot(layer_, product_, operand); }

  static Copies room_for(const at::Tensor& tensor, Fp8Operand operand, bool plain, bool turned) {
    const at::TensorOptions options = tensor.options().dtype(fp8_type(operand));
    Copies copies;
    if (plain) copies.plain = at::empty(tensor.sizes(), options);
    if (turned) copies.turned = at::empty({tensor.size(1), tensor.size(0)}, options);
    return copies;
  }
  Copies narrowed(const at::Tensor& tensor, Fp8Operand operand, bool plain, bool turned) const {
    Copies copies = room_for(tensor, operand, plain, turned);
    fill(tensor, operand, copies);
    return copies;
  }
  // Gradients between their two GEMMs, by address. There may be several micro-batches, if weight gradients
  // are computed later.
  Copies& keep(const at::Tensor& gradient, Copies copies) {
    if (std::exchange(waiting_of_, tools_.scales.number()) != tools_.scales.number()) waiting_.clear();
    return waiting_[gradient.data_ptr()] = std::move(copies);
  }
  Copies* kept(const at::Tensor& gradient) {
    const auto found = waiting_.find(gradient.data_ptr());
    const bool is_there = found != waiting_.end() && waiting_of_ == tools_.scales.number() &&
                          found->second.plain.defined() && found->second.plain.sizes() == gradient.sizes();
    return is_there ? &found->second : nullptr;
  }
  Copies take(const at::Tensor& gradient) {
    if (waiting_of_ != tools_.scales.number()) waiting_.clear();
    const auto found = waiting_.find(gradient.data_ptr());
    if (found == waiting_.end()) return {};
    Copies copies = std::move(found->second);
    waiting_.erase(found);
    return copies;
  }
  // The fp8 copies that were written into the memory of this input in this step; null if there are none.
  const Copies* taken_input(const at::Tensor& input) const {
    const auto found = inputs_.find(input.data_ptr());
    return found == inputs_.end() || inputs_of_ != tools_.scales.number() ? nullptr : &found->second;
  }
  Operand turned_input(const at::Tensor& input) const {
    const Copies* taken = taken_input(input);
    if (taken == nullptr) {
      const Copies copies = narrowed(input, Fp8Operand::input, /*plain=*/false, /*turned=*/true);
      return {copies.turned, copies.inverse};
    }
    if (taken->turned.defined()) return {taken->turned, taken->inverse};
    at::Tensor turned = room_for(input, Fp8Operand::input, /*plain=*/false, /*turned=*/true).turned;
    tools_.kernels.transpose_fp8(taken->plain, turned);
    return {turned, taken->inverse};
  }
  void fill(const at::Tensor& tensor, Fp8Operand operand, Copies& copies) const {
    const bool is_measured_already =
        operand == Fp8Operand::weight && tools_.scales.has_rounded_weights(layer_);
    at::Tensor maximum = is_measured_already ? at::Tensor() : tools_.scales.maximum(slot(operand));
    const Fp8Scale scale = tools_.scales.scale_for(slot(operand), tensor);
    copies.inverse = scale.inverse;
    tools_.kernels.quantise(operand, tensor, scale.scale, copies.plain, copies.turned, maximum);
  }
  const Copies& weight_of(const at::Tensor& weight) {
    if (!weight_.plain.defined() || weight_.plain.sizes() != weight.sizes())
      weight_ = narrowed(weight, Fp8Operand::weight, true, true);
    else if (weight_of_ != tools_.scales.number())
      fill(weight, Fp8Operand::weight, weight_);
    weight_of_ = tools_.scales.number();
    return weight_;
  }

  LtShape shape_of(std::int64_t m, std::int64_t n, std::int64_t k) const {
    LtShape shape;
    shape.m = m, shape.n = n, shape.k = k, shape.a_stride = shape.b_stride = k;
    shape.a_is_transposed = true, shape.is_narrow = true;
    return shape;
  }
  // y = x W^T + bias + addend.
  bool multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                const at::Tensor& addend, at::Tensor& y) {
    const Copies* taken = taken_input(x);
    if (!can(x, weight) || !all_aligned(bias, addend, y)) {
      ensure(taken == nullptr, "an operand exists only in fp8, but this GEMM does not run in fp8");
      return false;
    }
    const Copies input =
        taken != nullptr ? *taken : narrowed(x, Fp8Operand::input, /*plain=*/true, /*turned=*/false);
    LtShape shape = shape_of(weight.size(0), x.size(0), x.size(1));
    shape.d_stride = y.stride(0);
    shape.has_addend = addend.defined(), shape.c_stride = addend.defined() ? addend.stride(0) : y.stride(0);
    shape.epilogue = bias.defined() ? LtEpilogue::bias : LtEpilogue::none;
    has_forward_ =
        run(shape, {weight_of(weight).plain, weight_.inverse}, {input.plain, input.inverse}, addend, y, bias);
    ensure(has_forward_ || taken == nullptr, "cuBLASLt no longer supports a GEMM that it ran before");
    return has_forward_;
  }
  bool run(const LtShape& shape, const Operand& a, const Operand& b, const at::Tensor& addend,
           const at::Tensor& to, const at::Tensor& bias) const {
    const auto data = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; };
    return tools_.products.choices()->run(
        shape, {a.values.data_ptr(), b.values.data_ptr(), data(addend), to.data_ptr(), data(bias),
                a.inverse.data_ptr(), b.inverse.data_ptr()});
  }

  const Fp8Tools tools_;
  const int layer_;
  const LayerProduct product_;
  const std::unique_ptr<Products> twin_;
  Copies weight_;
  std::int64_t weight_of_ = -1;  // the step in which it was quantised
  std::map<const void*, Copies> waiting_;
  std::int64_t waiting_of_ = -1;          // the step that they belong to
  std::map<const void*, Copies> inputs_;  // by address
  std::int64_t inputs_of_ = -1;
  // Whether cuBLASLt ran the last GEMM of each kind.
  bool has_forward_ = false, has_input_gradient_ = false, has_weight_gradient_ = false;
};

}  // namespace

std::unique_ptr<Products> make_cuda_fp8_products(const Fp8Tools& tools, int layer, LayerProduct product) {
  return std::make_unique<CudaFp8Products>(tools, layer, product);
}

}  // namespace optimus
#endif
