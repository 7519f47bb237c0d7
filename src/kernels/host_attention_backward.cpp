// Attention backward on processors: probabilities are computed anew from logsumexp, block of keys by block of keys. The gradient
// of a head of keys is one thread's work, so its sum always has the same order.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "kernels/host_attention.h"
#include "kernels/host_lanes.h"

namespace optimus {
namespace {

// The backward pass of one segment's heads that share a head of keys: block of keys by block of keys.
template <typename T>
class BackwardBlocks {
 public:
  using W = Wide<T>;
  BackwardBlocks(const AttentionTask& task, std::int64_t longest, std::int64_t group)
      : rule_(task.dropout.rate),
        has_dropout_(task.dropout.rate != 0),
        head_dim_(task.shape.head_dim),
        keys_(kBlock, task.shape.head_dim),
        keys_across_(task.shape.head_dim, kBlock),
        values_across_(task.shape.head_dim, kBlock),
        key_sums_(kBlock, task.shape.head_dim),
        value_sums_(kBlock, task.shape.head_dim),
        probabilities_(kBlock, kBlock),
        slopes_(kBlock, kBlock) {
    for (std::int64_t i = 0; i < group; ++i) queries_.emplace_back(longest, task.shape.head_dim);
  }

  void take_queries(std::int64_t member, const Head<T>& q, const Head<T>& dout, const Head<T>& out,
                    const W* logsumexp, std::int64_t length) {
    PerQuery& to = queries_[static_cast<std::size_t>(member)];
    copy_in(q, {0, length}, to.q);
    copy_in(dout, {0, length}, to.dout);
    to.dq.zero(length);
    to.logsumexp = logsumexp;
    for (std::int64_t r = 0; r < length; ++r) {
      const T *a = dout.row(r), *b = out.row(r);
      to.delta[static_cast<std::size_t>(r)] =
          lane_sum<W>(q.head_dim, [=](std::int64_t d) { return load(a[d]) * load(b[d]); });
    }
  }

  // Adds to the queries' gradients, writes those of the keys. `places` has one for each query head of the group.
  void run(const std::vector<HeadPlace>& places, const Head<T>& k, const Head<T>& v, Span keys,
           const Head<T>& dk, const Head<T>& dv) {
    copy_in(k, keys, keys_);
    copy_in_transposed(k, keys, keys_across_);
    copy_in_transposed(v, keys, values_across_);
    key_sums_.zero(kBlock), value_sums_.zero(kBlock);
    for (std::size_t member = 0; member < places.size(); ++member) {
      const std::int64_t length = places[member].length();
      const std::int64_t first = places[member].is_causal ? keys.begin / kBlock * kBlock : 0;
      for (std::int64_t begin = first; begin < length; begin += kBlock)
        add_queries(places[member], queries_[member], {begin, std::min(begin + kBlock, length)}, keys);
    }
    for (std::int64_t j = 0; j < keys.size(); ++j) {
      copy_out(key_sums_, j, W{1}, dk, keys.begin + j);
      copy_out(value_sums_, j, W{1}, dv, keys.begin + j);
    }
  }

  void put_query_gradient(std::int64_t member, const Head<T>& dq, std::int64_t length) const {
    for (std::int64_t r = 0; r < length; ++r)
      copy_out(queries_[static_cast<std::size_t>(member)].dq, r, W{1}, dq, r);
  }

 private:
  struct PerQuery {
    Scratch<W> q, dout, dq;
    std::vector<W> delta;  // sum of dout * out: what the softmax takes off every slope of the row
    const W* logsumexp = nullptr;
    PerQuery(std::int64_t length, std::int64_t head_dim)
        : q(round_up(length, kBlock), head_dim),
          dout(round_up(length, kBlock), head_dim),
          dq(round_up(length, kBlock), head_dim),
          delta(static_cast<std::size_t>(length)) {}
  };

  void add_queries(const HeadPlace& place, PerQuery& of, Span queries, Span keys) {
    const std::int64_t rows = round_up(queries.size(), kTileRows),
                       key_rows = round_up(keys.size(), kTileRows);
    const std::int64_t columns = round_up(keys.size(), kVectorLanes<W>), width = keys_.stride();
    const std::int64_t at = queries.begin;
    probabilities_.zero(kBlock), slopes_.zero(kBlock);
    multiply_add<W>(of.q.left(at), keys_across_.right(), probabilities_.block(), rows, columns, head_dim_);
    multiply_add<W>(of.dout.left(at), values_across_.right(), slopes_.block(), rows, columns, head_dim_);
    for (std::int64_t i = 0; i < queries.size(); ++i) derive_row(place, of, at + i, i, keys);
    multiply_add<W>(probabilities_.transposed(), of.dout.right(at), value_sums_.block(), key_rows, width,
                    queries.size());
    multiply_add<W>(slopes_.transposed(), of.q.right(at), key_sums_.block(), key_rows, width, queries.size());
    multiply_add<W>(slopes_.left(), keys_.right(), of.dq.block(at), rows, width, keys.size());
  }

  // A row of scores becomes probabilities (after dropout, for the values' gradient), a row of slopes the scores' gradient.
  void derive_row(const HeadPlace& place, const PerQuery& of, std::int64_t query, std::int64_t i, Span keys) {
    W *probability = probabilities_.row(i), *slope = slopes_.row(i);
    const std::int64_t seen = place.num_seen(query, keys);
    const W scale = static_cast<W>(place.scale), logsumexp = of.logsumexp[query];
    const W delta = of.delta[static_cast<std::size_t>(query)];
    if (has_dropout_) {
      place.fill_mask(rule_, query, keys.begin, std::span(kept_.data(), static_cast<std::size_t>(seen)));
      apply_mask(kept_.data(), static_cast<W>(rule_.scale), seen, slope);
    }
#pragma omp simd
    for (std::int64_t j = 0; j < seen; ++j) {
      const W share = exponential(probability[j] * scale - logsumexp);
      probability[j] = share;
      slope[j] = share * (slope[j] - delta) * scale;
    }
    if (has_dropout_) apply_mask(kept_.data(), static_cast<W>(rule_.scale), seen, probability);
    std::fill(probability + seen, probability + kBlock, W{0});
    std::fill(slope + seen, slope + kBlock, W{0});
  }

  DropoutRule rule_;
  bool has_dropout_;
  std::int64_t head_dim_;
  std::vector<PerQuery> queries_;
  Scratch<W> keys_, keys_across_, values_across_, key_sums_, value_sums_, probabilities_, slopes_;
  std::array<std::uint8_t, kBlock> kept_{};
};

// All gradients of one head of keys of one segment.
template <typename T>
void backward_head(const AttentionTask& task, const AttentionTensors& at, const AttentionSegment& segment,
                   std::int64_t kv_head, BackwardBlocks<T>& blocks) {
  const AttentionShape& shape = task.shape;
  const std::int64_t group = shape.heads / shape.kv_heads, row = first_row(shape, segment);
  const std::int64_t length = segment.end - segment.begin;
  std::vector<HeadPlace> places;
  for (std::int64_t member = 0; member < group; ++member) {
    const std::int64_t head = kv_head * group + member;
    places.emplace_back(task, segment, head);
    blocks.take_queries(member, Head<T>(at.q, row, head), Head<T>(at.dout, row, head),
                        Head<T>(at.out, row, head),
                        statistics_of<Wide<T>>(shape, segment, head, at.logsumexp), length);
  }
  const Head<T> k(at.k, row, kv_head), v(at.v, row, kv_head), dk(at.dk, row, kv_head),
      dv(at.dv, row, kv_head);
  for (std::int64_t begin = 0; begin < length; begin += kBlock)
    blocks.run(places, k, v, {begin, std::min(begin + kBlock, length)}, dk, dv);
  for (std::int64_t member = 0; member < group; ++member)
    blocks.put_query_gradient(member, Head<T>(at.dq, row, kv_head * group + member), length);
}

template <typename T>
void backward_typed(const AttentionTask& task, const AttentionTensors& at) {
  const AttentionShape& shape = task.shape;
  const std::vector<AttentionSegment> segments = segments_of(task);
  const auto num_items = static_cast<std::int64_t>(segments.size()) * shape.kv_heads;
  at::parallel_for(0, num_items, 1, [&](std::int64_t first, std::int64_t last) {
    BackwardBlocks<T> blocks(task, longest_of(segments), shape.heads / shape.kv_heads);
    for (std::int64_t i = first; i < last; ++i)
      backward_head(task, at, segments[static_cast<std::size_t>(i / shape.kv_heads)], i % shape.kv_heads,
                    blocks);
  });
}

}  // namespace

void host_attention_backward(const AttentionTask& task, const AttentionTensors& tensors) {
  with_element_type(tensors.q.scalar_type(), [&]<typename T>(T) { backward_typed<T>(task, tensors); });
}

}  // namespace optimus
