// Attention by fused kernels. CPUs use ATen's flash kernel. CUDA calls cuDNN directly where supported
// (attention_cudnn.h), and otherwise uses cuDNN or flash kernels through ATen. ATen's operators allocate
// their results, which are copied to the caller's tensors. Fallback implementations handle what these kernels
// do not support: keyed dropout (which only cuDNN supports, as a mask) and wide types on CUDA.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>

#include <array>

#include "kernels/attention.h"
#include "kernels/attention_cudnn.h"

namespace optimus {
namespace {

// The part of a task that one kernel call covers. It consists of sequences of equal length, with tensors as
// [sequences, heads, length, head_dim].
struct Piece {
  std::int64_t first_row = 0, sequences = 0, length = 0;  // rows first_row .. + sequences * length
  // Position of the piece in logsumexp.
  std::int64_t sequence = 0, begin = 0;

  at::Tensor heads(const at::Tensor& tensor) const {
    return tensor.narrow(0, first_row, sequences * length).unflatten(0, {sequences, length}).transpose(1, 2);
  }
  at::Tensor statistics(const at::Tensor& logsumexp) const {  // [sequences, heads, length]
    return logsumexp.narrow(0, sequence, sequences).narrow(2, begin, length);
  }
};

std::vector<Piece> pieces_of(const AttentionTask& task) {
  const AttentionShape& shape = task.shape;
  if (task.segments.empty())
    return {
        {.first_row = 0, .sequences = shape.sequences, .length = shape.length, .sequence = 0, .begin = 0}};
  std::vector<Piece> pieces;
  for (const AttentionSegment& segment : segments_of(task))
    pieces.push_back({.first_row = segment.sequence * shape.length + segment.begin,
                      .sequences = 1,
                      .length = segment.end - segment.begin,
                      .sequence = segment.sequence,
                      .begin = segment.begin});
  return pieces;
}

struct ForwardResult {
  at::Tensor out, logsumexp;  // [sequences, heads, length(, head_dim)]
};
struct BackwardResult {
  at::Tensor dq, dk, dv;
};
struct AttentionInputs {
  at::Tensor q, k, v;
};
struct BackwardInputs {
  at::Tensor dout, out, logsumexp;
};

ForwardResult host_forward(const AttentionShape& shape, const AttentionInputs& in) {
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      in.q, in.k, in.v, 0.0, shape.is_causal, std::nullopt, shape.scale);
  return {out, logsumexp};
}

BackwardResult host_backward(const AttentionShape& shape, const AttentionInputs& in,
                             const BackwardInputs& saved) {
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      saved.dout, in.q, in.k, in.v, saved.out, saved.logsumexp, 0.0, shape.is_causal, std::nullopt,
      shape.scale);
  return {dq, dk, dv};
}

// cuDNN is faster than flash kernels on Hopper. A PyTorch setting can disable it.
bool uses_cudnn(const AttentionShape& shape) {
  return shape.head_dim <= 128 && at::globalContext().userEnabledCuDNNSDP();
}

ForwardResult cuda_forward(const AttentionShape& shape, const AttentionInputs& in) {
  if (uses_cudnn(shape)) {
    const auto result = at::_scaled_dot_product_cudnn_attention(in.q, in.k, in.v, std::nullopt, true, 0.0,
                                                                shape.is_causal, false, shape.scale);
    const at::Tensor& logsumexp = std::get<1>(result);
    return {std::get<0>(result), logsumexp.dim() == 4 ? logsumexp.squeeze(3) : logsumexp};
  }
  const auto result =
      at::_scaled_dot_product_flash_attention(in.q, in.k, in.v, 0.0, shape.is_causal, false, shape.scale);
  return {std::get<0>(result), std::get<1>(result)};
}

BackwardResult cuda_backward(const AttentionShape& shape, const AttentionInputs& in,
                             const BackwardInputs& saved) {
  const at::Tensor no_seed = at::empty({}, in.q.options().dtype(at::kLong));  // read only with dropout
  const std::int64_t length = in.q.size(2);
  if (uses_cudnn(shape)) {
    auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        saved.dout, in.q, in.k, in.v, saved.out, saved.logsumexp.unsqueeze(3), no_seed, no_seed, {}, {}, {},
        length, length, 0.0, shape.is_causal, shape.scale);
    return {dq, dk, dv};
  }
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      saved.dout, in.q, in.k, in.v, saved.out, saved.logsumexp, {}, {}, length, length, 0.0, shape.is_causal,
      no_seed, no_seed, shape.scale);
  return {dq, dk, dv};
}

// The CPU flash kernel needs equal numbers of heads in q and k. It is therefore called once for the first
// heads of all groups, once for the second heads, and so on. This function returns the strided view for such
// a call.
at::Tensor group_member(const at::Tensor& heads, std::int64_t index, std::int64_t group) {
  return heads.slice(1, index, std::nullopt, group);
}

class FusedAttention final : public Attention {
 public:
  void forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               at::Tensor& out, at::Tensor& logsumexp) const override {
    if (can_call_cudnn(task, q) && cudnn_->forward(task, q, k, v, out, logsumexp)) return;
    if (needs_fallback(task, q)) return fallback(q).forward(task, q, k, v, out, logsumexp);
    zero_gaps(task, out);
    if (!task.segments.empty()) logsumexp.zero_();
    const std::int64_t calls = num_calls(task.shape, q);
    for (const Piece& piece : pieces_of(task)) {
      if (piece.sequences * piece.length == 0) continue;
      const at::Tensor to = piece.heads(out), statistics = piece.statistics(logsumexp);
      for (std::int64_t i = 0; i < calls; ++i) {
        const AttentionInputs in{group_member(piece.heads(q), i, calls), piece.heads(k), piece.heads(v)};
        const ForwardResult result =
            q.is_cuda() ? cuda_forward(task.shape, in) : host_forward(task.shape, in);
        group_member(to, i, calls).copy_(result.out);
        group_member(statistics, i, calls).copy_(result.logsumexp);
      }
    }
  }

  void backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, at::Tensor& dq,
                at::Tensor& dk, at::Tensor& dv) const override {
    if (can_call_cudnn(task, q) && cudnn_->backward(task, dout, q, k, v, out, logsumexp, dq, dk, dv)) return;
    if (needs_fallback(task, q)) return fallback(q).backward(task, dout, q, k, v, out, logsumexp, dq, dk, dv);
    zero_gaps(task, dq), zero_gaps(task, dk), zero_gaps(task, dv);
    const std::int64_t calls = num_calls(task.shape, q);
    for (const Piece& piece : pieces_of(task)) {
      if (piece.sequences * piece.length == 0) continue;
      const AttentionInputs inputs{piece.heads(q), piece.heads(k), piece.heads(v)};
      const BackwardInputs saved{piece.heads(dout), piece.heads(out), piece.statistics(logsumexp)};
      at::Tensor key_sum, value_sum;  // sums over the group, in the wider type
      for (std::int64_t i = 0; i < calls; ++i) {
        const BackwardResult result = backward_member(task.shape, inputs, saved, i, calls);
        group_member(piece.heads(dq), i, calls).copy_(result.dq);
        key_sum = calls == 1 ? result.dk : i == 0 ? wide(result.dk) : key_sum.add_(result.dk);
        value_sum = calls == 1 ? result.dv : i == 0 ? wide(result.dv) : value_sum.add_(result.dv);
      }
      piece.heads(dk).copy_(key_sum);
      piece.heads(dv).copy_(value_sum);
    }
  }

 private:
  static at::Tensor wide(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
  }
  static BackwardResult backward_member(const AttentionShape& shape, const AttentionInputs& inputs,
                                        const BackwardInputs& saved, std::int64_t index, std::int64_t group) {
    const AttentionInputs in{group_member(inputs.q, index, group), inputs.k, inputs.v};
    const BackwardInputs member_saved{group_member(saved.dout, index, group),
                                      group_member(saved.out, index, group),
                                      group_member(saved.logsumexp, index, group)};
    return inputs.q.is_cuda() ? cuda_backward(shape, in, member_saved)
                              : host_backward(shape, in, member_saved);
  }
  // CUDA kernels support grouped-query attention directly.
  static std::int64_t num_calls(const AttentionShape& shape, const at::Tensor& q) {
    return q.is_cuda() ? 1 : shape.heads / shape.kv_heads;
  }
  static bool needs_fallback(const AttentionTask& task, const at::Tensor& q) {
    return task.dropout.rate != 0 || (q.is_cuda() && !is_supported_on_cuda(task.shape, q));
  }
  static bool is_supported_on_cuda(const AttentionShape& shape, const at::Tensor& q) {
    return (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) && shape.head_dim % 8 == 0 &&
           shape.head_dim <= 256;
  }
  // Returns false with segments, because every segment length would need its own cuDNN graph.
  static bool can_call_cudnn(const AttentionTask& task, const at::Tensor& q) {
    return q.is_cuda() && uses_cudnn(task.shape) && is_supported_on_cuda(task.shape, q) &&
           task.segments.empty() && q.numel() > 0;
  }
  const Attention& fallback(const at::Tensor& q) const { return q.is_cuda() ? *plain_ : *host_; }

  std::unique_ptr<Attention> plain_ = make_plain_attention(), host_ = make_host_attention();
  std::unique_ptr<CudnnAttention> cudnn_ = std::make_unique<CudnnAttention>();
};

}  // namespace

std::unique_ptr<Attention> make_fused_attention() { return std::make_unique<FusedAttention>(); }

}  // namespace optimus
