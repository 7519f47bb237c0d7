// Attention computed by its definition with ATen operations. It is the reference for the other
// implementations.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <limits>

#include "kernels/attention.h"

namespace optimus {
namespace {

at::Tensor wider(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// One segment of a task, with its tensors as [heads, rows, head_dim] in the wider type.
class PlainSegment {
 public:
  PlainSegment(const AttentionTask& task, const AttentionSegment& segment) : task_(task), segment_(segment) {}

  at::Tensor query_heads(const at::Tensor& tensor) const {
    return wider(rows_of(task_.shape, segment_, tensor).transpose(0, 1));
  }
  // Like query_heads(), but repeats each key head for the query heads of its group.
  at::Tensor key_heads(const at::Tensor& tensor) const {
    return query_heads(tensor).repeat_interleave(group(), 0);
  }
  // The inverse of key_heads(). Writes the sum over the heads of each group.
  void put_key_heads(const at::Tensor& values, at::Tensor& to) const {
    const AttentionShape& shape = task_.shape;
    const at::Tensor sum = values.reshape({shape.kv_heads, group(), length(), shape.head_dim}).sum(1);
    rows_of(shape, segment_, to).copy_(sum.transpose(0, 1));
  }
  at::Tensor statistics(const at::Tensor& logsumexp) const {  // [heads, rows, 1]
    return logsumexp.select(0, segment_.sequence).narrow(1, segment_.begin, length()).unsqueeze(2);
  }

  at::Tensor scores(const at::Tensor& q, const at::Tensor& k) const {  // [heads, rows, rows]
    at::Tensor result = at::matmul(q, k.transpose(1, 2)) * task_.shape.scale;
    if (!task_.shape.is_causal) return result;
    const at::Tensor is_later = at::ones({length(), length()}, q.options().dtype(at::kBool)).triu(1);
    return result.masked_fill(is_later, -std::numeric_limits<double>::infinity());
  }

  // Returns 0 or 1 / (1 - rate) for each score. Undefined without dropout.
  at::Tensor factors(const at::Tensor& like) const {
    if (task_.dropout.rate == 0) return {};
    const Span positions{segment_.begin, segment_.end};
    return dropout_factors(task_.dropout, segment_.sequence, task_.shape.heads, positions, positions, like);
  }

 private:
  std::int64_t length() const { return segment_.end - segment_.begin; }
  std::int64_t group() const { return task_.shape.heads / task_.shape.kv_heads; }

  const AttentionTask& task_;
  const AttentionSegment& segment_;
};

class PlainAttention final : public Attention {
 public:
  void forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               at::Tensor& out, at::Tensor& logsumexp) const override {
    zero_gaps(task, out), logsumexp.zero_();
    for (const AttentionSegment& segment : segments_of(task)) {
      if (segment.begin == segment.end) continue;
      const PlainSegment plain_segment(task, segment);
      const at::Tensor scores =
          plain_segment.scores(plain_segment.query_heads(q), plain_segment.key_heads(k));
      at::Tensor probabilities = scores.softmax(2);
      const at::Tensor factors = plain_segment.factors(probabilities);
      if (factors.defined()) probabilities = probabilities * factors;
      plain_segment.statistics(logsumexp).copy_(scores.logsumexp({2}, true));
      rows_of(task.shape, segment, out)
          .copy_(at::matmul(probabilities, plain_segment.key_heads(v)).transpose(0, 1));
    }
  }

  void backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, at::Tensor& dq,
                at::Tensor& dk, at::Tensor& dv) const override {
    zero_gaps(task, dq), zero_gaps(task, dk), zero_gaps(task, dv);
    for (const AttentionSegment& segment : segments_of(task)) {
      if (segment.begin == segment.end) continue;
      const PlainSegment plain_segment(task, segment);
      const at::Tensor query = plain_segment.query_heads(q), key = plain_segment.key_heads(k),
                       value = plain_segment.key_heads(v);
      const at::Tensor upstream = plain_segment.query_heads(dout);
      const at::Tensor probabilities =
          (plain_segment.scores(query, key) - plain_segment.statistics(logsumexp)).exp();
      const at::Tensor factors = plain_segment.factors(probabilities);
      const at::Tensor dropped_probabilities = factors.defined() ? probabilities * factors : probabilities;
      at::Tensor score_gradients = at::matmul(upstream, value.transpose(1, 2));
      if (factors.defined()) score_gradients = score_gradients * factors;
      const at::Tensor delta = (upstream * plain_segment.query_heads(out)).sum(2, true);
      const at::Tensor dscores = probabilities * (score_gradients - delta) * task.shape.scale;
      const at::Tensor query_gradient = at::matmul(dscores, key),
                       key_gradient = at::matmul(dscores.transpose(1, 2), query);
      const at::Tensor value_gradient = at::matmul(dropped_probabilities.transpose(1, 2), upstream);
      // All operands have been read, so dq may alias q.
      rows_of(task.shape, segment, dq).copy_(query_gradient.transpose(0, 1));
      plain_segment.put_key_heads(key_gradient, dk);
      plain_segment.put_key_heads(value_gradient, dv);
    }
  }
};

}  // namespace

at::Tensor dropout_factors(const AttentionDropout& dropout, std::int64_t sequence, std::int64_t heads,
                           Span queries, Span keys, const at::Tensor& like) {
  const std::int64_t sample = dropout.samples[static_cast<std::size_t>(sequence)];
  const RandomKey key = dropout.key.derive(static_cast<std::uint64_t>(sample));
#ifdef OPTIMUS_CUDA
  if (like.is_cuda()) {
    at::Tensor factors = at::empty({heads, queries.size(), keys.size()}, like.options());
    fill_dropout_factors(dropout, key, queries, keys, factors);
    return factors;
  }
#endif
  at::Tensor uniform = at::empty({heads, queries.size(), keys.size()}, at::kDouble);
  const std::int64_t size = queries.size() * keys.size();
  for (std::int64_t head = 0; head < heads; ++head)
    fill_uniform(key.derive(static_cast<std::uint64_t>(dropout.first_head + head)),
                 {dropout.max_positions, dropout.max_positions}, {queries, keys},
                 std::span(uniform.data_ptr<double>() + head * size, static_cast<std::size_t>(size)));
  return (uniform.ge(dropout.rate).to(at::kDouble) / (1 - dropout.rate)).to(like.scalar_type());
}

std::unique_ptr<Attention> make_plain_attention() { return std::make_unique<PlainAttention>(); }

}  // namespace optimus
