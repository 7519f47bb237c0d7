// GEMMs and attention on CUDA in 16-bit types, compared with ATen in fp64 on the same numbers: the selected
// algorithms, cuDNN without copies, and the fallbacks.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>

#include "engine/fp8_gemm.h"
#include "engine/gemm.h"
#include "gpu/device_tensors.h"
#include "kernels/attention.h"

#include "engine/make_gemm.h"

namespace optimus::test {

class GemmCheck {
 public:
  GemmCheck(at::ScalarType type, Differences& differences) : type_(type), differences_(differences) {}

  void run() {
    // Shapes of a small layer; widths without 16-byte alignment, which use ATen; one row.
    for (const auto& [rows, in, out] : std::vector<std::array<std::int64_t, 3>>{
             {384, 256, 512}, {1000, 768, 2304}, {128, 64, 72}, {33, 50, 131}, {1, 128, 64}, {77, 1001, 40}})
      products(rows, in, out);
    logit_gemms(384, 256, 5003);
    if (type_ == at::kBFloat16)
      for (const auto& [rows, in, out] : std::vector<std::array<std::int64_t, 3>>{
               {384, 256, 512}, {1008, 768, 2304}, {16, 64, 48}, {30, 64, 48}})
        fp8_gemms(rows, in, out);
    for (const bool is_causal : {true, false})
      for (const std::int64_t dim : {64, 128, 24})
        for (const std::int64_t kv_heads : {4, 2})
          attention({2, 192, 4, kv_heads, dim, is_causal, 1 / std::sqrt(static_cast<double>(dim))}, 0);
    // Our own kernels, and the plain fallback for heads of 24.
    for (const std::int64_t dim : {64, 128, 24})
      for (const double rate : {0.1, 0.5}) {
        attention({2, 192, 4, 4, dim, true, 1 / std::sqrt(static_cast<double>(dim))}, rate);
        attention({2, 200, 4, 2, dim, false, 1 / std::sqrt(static_cast<double>(dim))}, rate);
      }
    attention({1, 4096, 12, 12, 64, true, 0.125}, 0.1);
    for (const std::int64_t length : {2, 31, 77, 129}) attention({3, length, 4, 1, 64, true, 0.125}, 0.1);
    dropout_in_place_and_by_parts();
  }

 private:
  void near(const std::string& what, const at::Tensor& got, const at::Tensor& expected, double limit) {
    differences_.compare(what, type_, got, expected, limit);
  }

  void products(std::int64_t rows, std::int64_t in, std::int64_t out) {
    const double near_once = tolerance(type_);  // fp32 sums, rounded once
    // Sums of `rows` exact products: errors of 2^-24, which the truncation of tensor cores makes one-sided.
    const double wide_limit = std::ldexp(static_cast<double>(rows), -23) + 1e-6;
    const at::Tensor x = random_rows(rows, in, type_, 8), weight = random_tensor({out, in}, type_),
                     bias = random_tensor({out}, type_), stream = random_tensor({rows, out}, type_), none;
    const at::Tensor exact = in_double(x).mm(in_double(weight).t());
    at::Tensor y = at::empty({rows, out}, x.options());
    for (int i = 0; i < 2; ++i) {  // first measured, then cached
      gemm_->forward(x, weight, {}, y);
      near("GEMM", y, exact, near_once);
      gemm_->forward(x, weight, bias, y);
      near("GEMM with bias", y, exact + in_double(bias), near_once);
      gemm_->forward_with_residual(x, weight, bias, stream, y);
      near("GEMM added to a stream", y, exact + in_double(bias) + in_double(stream),
           2 * near_once);  // ATen rounds twice
      y.copy_(stream);
      gemm_->forward(x, weight, {}, y, true);
      near("GEMM added to a stream", y, exact + in_double(stream), 2 * near_once);
      gradients(x, weight, wide_limit);
    }
  }

  // For a vocabulary without 16-byte alignment, whose logits have an aligned row stride.
  void logit_gemms(std::int64_t rows, std::int64_t in, std::int64_t out) {
    const at::Tensor x = random_tensor({rows, in}, type_), weight = random_tensor({out, in}, type_),
                     bias = random_tensor({out}, type_);
    at::Tensor logits = at::empty({rows, (out + 63) / 64 * 64}, x.options()).narrow(1, 0, out),
               dx = at::empty_like(x), dweight = at::zeros({out, in}, x.options().dtype(at::kFloat));
    const at::Tensor exact = in_double(x).mm(in_double(weight).t());
    gemm_->forward(x, weight, {}, logits);
    near("logits", logits, exact, tolerance(type_));
    gemm_->forward(x, weight, bias, logits);
    near("logits and bias", logits, exact + in_double(bias), tolerance(type_));
    // The sum of the last columns is rounded before it is added.
    gemm_->input_gradient(logits, weight, dx);
    near("logits' input gradient", dx, in_double(logits).mm(in_double(weight)), 2 * tolerance(type_));
    gemm_->weight_gradient(logits, x, dweight, false);
    gemm_->weight_gradient(logits, x, dweight, true);
    near("logits' weight gradient", dweight, 2 * in_double(logits).t().mm(in_double(x)),
         std::ldexp(static_cast<double>(2 * rows), -23) + 1e-6);  // as in products()
  }

  void gradients(const at::Tensor& x, const at::Tensor& weight, double wide_limit) {
    const std::int64_t rows = x.size(0), in = x.size(1), out = weight.size(0);
    const at::Tensor dy = random_tensor({rows, out}, type_), before = random_tensor({rows, in}, type_);
    const at::Tensor exact = in_double(dy).mm(in_double(weight));
    at::Tensor dx = at::empty_like(before);
    gemm_->input_gradient(dy, weight, dx, before);
    near("input gradient, added", dx, exact + in_double(before), tolerance(type_));
    gemm_->input_gradient(dy, weight, dx);
    near("input gradient", dx, exact, tolerance(type_));
    if (gemm_->input_gradient_through_activation(Activation::gelu_tanh, dy, weight, before, dx)) {
      const at::Tensor through = at::gelu_backward(exact, in_double(before), "tanh");
      near("input gradient, gelu", dx, through,
           tolerance(type_) + error_by_tanh(exact, in_double(before)) / through.abs().max().item<double>());
    }
    at::Tensor sums = random_tensor({out, in}, at::kFloat);
    const at::Tensor product = in_double(dy).t().mm(in_double(x)), old = in_double(sums);
    gemm_->weight_gradient(dy, x, sums);
    near("weight gradient", sums, old + product, wide_limit);
    gemm_->weight_gradient(dy, x, sums, /*adds=*/false);
    near("weight gradient", sums, product, wide_limit);
  }

  // The library's tanh t has an error of 2^-11, before the result is rounded. The derivative of gelu, (1 + t)
  // / 2 + x u' (1 - t^2) / 2 with t of u = c (x + 0.044715 x^3), changes by 1 / 2 - x u' t times the change
  // of t.
  static double error_by_tanh(const at::Tensor& upstream, const at::Tensor& x) {
    constexpr double kSlope = 0.7978845608028654, kCubic = 0.044715;
    const at::Tensor t = (kSlope * (x + kCubic * x * x * x)).tanh();
    const at::Tensor change = 0.5 - x * kSlope * (1 + 3 * kCubic * x * x) * t;
    return std::ldexp((upstream * change).abs().max().item<double>(), -11);
  }

  // fp8 by cuBLASLt, compared with the exact product of the rounded operands. Tensor cores add 32 fp8
  // products at a time with about 13 fraction bits relative to the largest (fast accumulation) and truncate
  // the rest: an error of 2^-13 of the current sum, which is at most the sum of magnitudes, each time. The
  // result is then rounded, in 16 bits, before or after the addend is added.
  void near_fp8(const std::string& what, const at::Tensor& got, const at::Tensor& product,
                const at::Tensor& added, const at::Tensor& magnitudes, std::int64_t summed,
                double last_rounding) {
    const double cut = std::ldexp(std::ceil(static_cast<double>(summed) / 32), -13);
    const at::Tensor exact = product + added,
                     bound = (product.abs() + added.abs()) * last_rounding + magnitudes * cut + 1e-30;
    const double worst = ((in_double(got) - exact).abs() / bound).max().item<double>();
    differences_.require(
        what, worst <= 1,
        fmt::format("{}: error is {:.3g} of its bound, {} terms summed", what, worst, summed));
  }
  void fp8_gemms(std::int64_t rows, std::int64_t in, std::int64_t out) {
    Plan plan;
    plan.num_blocks = 3, plan.fp8.blocks = {1};
    Fp8Scales scales(plan, at::Device(at::kCUDA, 0)), reference_scales(plan, at::Device(at::kCUDA, 0));
    std::vector<float> maxima(kFp8SlotsOfLayer, 2.5f);  // larger values are clipped
    scales.set_history({{maxima}}), reference_scales.set_history({{maxima}});
    const std::unique_ptr<Kernels> kernels = make_cuda_kernels();
    const auto ours = make_fp8_gemm({*gemm_, *kernels, scales}, 0, LayerGemm::up);
    const auto reference = make_rounded_gemm({*gemm_, *kernels, reference_scales}, 0, LayerGemm::up);
    const at::Tensor x = random_rows(rows, in, type_, 8), weight = random_tensor({out, in}, type_),
                     bias = random_tensor({out}, type_), stream = random_tensor({rows, out}, type_),
                     dy = random_tensor({rows, out}, type_), before = random_tensor({rows, in}, type_);
    const auto rounded = [&](const at::Tensor& tensor, Fp8Operand operand) {
      const int slot = fp8_slot(0, LayerGemm::up, operand);
      return in_double(rounded_to_fp8(tensor, operand, scales.scale(slot), scales.inverse(slot)));
    };
    const double rounding = tolerance(type_);
    at::Tensor y = at::empty_like(stream), reference_y = at::empty_like(stream), dx = at::empty_like(before),
               reference_dx = at::empty_like(before), sums = random_tensor({out, in}, at::kFloat),
               reference_sums = sums.clone();
    for (int step = 0; step < 2; ++step) {  // weights are quantised once per step
      scales.begin_step(true), reference_scales.begin_step(true);
      for (int i = 0; i < 2; ++i) {
        ours->forward(x, weight, bias, y), reference->forward(x, weight, bias, reference_y);
        const at::Tensor x8 = rounded(x, Fp8Operand::input), w8 = rounded(weight, Fp8Operand::weight),
                         dy8 = rounded(dy, Fp8Operand::gradient), old_sums = in_double(sums);
        const at::Tensor product = x8.mm(w8.t()), sizes = x8.abs().mm(w8.abs().t());
        near_fp8("fp8 GEMM", y, product, in_double(bias), sizes, in, rounding);
        ours->forward_with_residual(x, weight, bias, stream, y),
            reference->forward_with_residual(x, weight, bias, stream, reference_y);
        near_fp8("fp8 GEMM added to a stream", y, product, in_double(bias) + in_double(stream), sizes, in,
                 2 * rounding);
        ours->input_gradient(dy, weight, dx, before),
            reference->input_gradient(dy, weight, reference_dx, before);
        near_fp8("fp8 input gradient", dx, dy8.mm(w8), in_double(before), dy8.abs().mm(w8.abs()), out,
                 rounding);
        ours->weight_gradient(dy, x, sums), reference->weight_gradient(dy, x, reference_sums);
        near_fp8("fp8 weight gradient", sums, dy8.t().mm(x8), old_sums, dy8.abs().t().mm(x8.abs()), rows,
                 1e-6);
      }
      differences_.require("fp8 maxima", at::equal(scales.maxima(), reference_scales.maxima()),
                           "maxima differ");
      weight.mul_(0.5);
    }
  }

  void attention(const AttentionShape& shape, double rate) {
    // Probabilities and their gradients are rounded inside the kernels too, so several roundings add up
    // (attention_test.cpp).
    const double limit = type_ == at::kBFloat16 ? std::ldexp(1, -6) : std::ldexp(1, -9);
    const std::int64_t rows = shape.sequences * shape.length, dim = shape.head_dim;
    const std::vector<std::int64_t> widths = {shape.heads * dim, shape.kv_heads * dim, shape.kv_heads * dim};
    const at::Tensor buffer = random_tensor({rows, widths[0] + 2 * widths[1]}, type_),
                     gradients = at::zeros_like(buffer),
                     dout = random_tensor({rows, shape.heads, dim}, type_);
    const auto heads = [&](const at::Tensor& joint, int which) {
      const std::int64_t begin = which == 0 ? 0 : widths[0] + (which - 1) * widths[1];
      return joint.narrow(1, begin, widths[static_cast<std::size_t>(which)]).unflatten(1, {-1, dim});
    };
    const at::Tensor q = heads(buffer, 0), k = heads(buffer, 1), v = heads(buffer, 2);
    at::Tensor dq = heads(gradients, 0), dk = heads(gradients, 1), dv = heads(gradients, 2);
    at::Tensor out = at::zeros_like(dout), sums = at::zeros({shape.sequences, shape.heads, shape.length},
                                                            out.options().dtype(at::kFloat));
    AttentionTask task;
    task.shape = shape;
    if (rate > 0) task.dropout = {rate, RandomKey(5).derive("scores"), {11, 4, 7}, 3, {}};  // as on CPUs
    const std::string name = rate > 0 ? "attention with dropout" : "attention";
    ours_->forward(task, q, k, v, out, sums);
    ours_->backward(task, dout, q, k, v, out, sums, dq, dk, dv);
    at::Tensor plain_out = in_double(out), plain_sums = in_double(sums), plain_dq = in_double(q),
               plain_dk = in_double(k), plain_dv = in_double(v);
    plain_->forward(task, in_double(q), in_double(k), in_double(v), plain_out, plain_sums);
    plain_->backward(task, in_double(dout), in_double(q), in_double(k), in_double(v), plain_out, plain_sums,
                     plain_dq, plain_dk, plain_dv);
    near(name, out, plain_out, limit);
    near(name + " sums", sums, plain_sums, 1e-4);
    near(name + " dq", dq, plain_dq, limit);
    near(name + " dk", dk, plain_dk, limit);
    near(name + " dv", dv, plain_dv, limit);
  }

  // The same bits with results in place of the operands, and with heads and sequences computed one by one, as
  // other plans do.
  void dropout_in_place_and_by_parts() {
    const std::int64_t length = 150, heads = 4, dim = 64;
    AttentionTask task;
    task.shape = {2, length, heads, heads, dim, true, 0.125};
    task.dropout = {0.1, RandomKey(5).derive("scores"), {11, 4}, 3, {}};
    const auto rows = [&] { return random_tensor({2 * length, heads, dim}, type_); };
    const at::Tensor q = rows(), k = rows(), v = rows(), dout = rows();
    at::Tensor out = rows(), sums = at::zeros({2, heads, length}, out.options().dtype(at::kFloat));
    at::Tensor dq = rows(), dk = rows(), dv = rows(), same_q = q.clone(), same_k = k.clone(),
               same_v = v.clone();
    ours_->forward(task, q, k, v, out, sums);
    ours_->backward(task, dout, q, k, v, out, sums, dq, dk, dv);
    ours_->backward(task, dout, same_q, same_k, same_v, out, sums, same_q, same_k, same_v);
    differences_.require("attention with dropout",
                         at::equal(same_q, dq) && at::equal(same_k, dk) && at::equal(same_v, dv),
                         "gradients in place differ");
    for (std::int64_t sequence = 0; sequence < 2; ++sequence)
      for (std::int64_t head = 0; head < heads; ++head) {
        AttentionTask part = task;
        part.shape.sequences = part.shape.heads = part.shape.kv_heads = 1;
        part.dropout.samples = {task.dropout.samples[static_cast<std::size_t>(sequence)]};
        part.dropout.first_head += head;
        const auto of = [&](const at::Tensor& tensor) {
          return tensor.narrow(0, sequence * length, length).narrow(1, head, 1);
        };
        at::Tensor one_out = of(rows()), one_dq = of(rows()), one_dk = of(rows()), one_dv = of(rows());
        at::Tensor one_sums = at::zeros({1, 1, length}, sums.options());
        ours_->forward(part, of(q), of(k), of(v), one_out, one_sums);
        ours_->backward(part, of(dout), of(q), of(k), of(v), one_out, one_sums, one_dq, one_dk, one_dv);
        differences_.require("attention with dropout",
                             at::equal(one_out, of(out)) && at::equal(one_dq, of(dq)) &&
                                 at::equal(one_dk, of(dk)) && at::equal(one_dv, of(dv)),
                             "heads one by one differ");
      }
  }

  const at::ScalarType type_;
  Differences& differences_;
  const std::unique_ptr<Gemm> gemm_ = make_gemm(at::Device(at::kCUDA, 0), type_);
  const std::unique_ptr<Attention> ours_ = make_attention(at::Device(at::kCUDA, 0), type_),
                                   plain_ = make_plain_attention();
};

}  // namespace optimus::test
