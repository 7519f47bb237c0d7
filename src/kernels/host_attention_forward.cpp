// Attention forward on processors: for a block of queries, the largest score and the sum of exponentials so far; the output is
// rescaled when a larger score comes. No matrix of scores is larger than a block.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/host_attention.h"
#include "kernels/host_lanes.h"

namespace optimus {
namespace {

// The forward pass over blocks of queries of one head after another, with the keys of the head packed.
template <typename T>
class ForwardBlocks {
 public:
  using W = Wide<T>;
  ForwardBlocks(const AttentionTask& task, std::int64_t longest)
      : rule_(task.dropout.rate),
        has_dropout_(task.dropout.rate != 0),
        head_dim_(task.shape.head_dim),
        queries_(kBlock, task.shape.head_dim),
        keys_(round_up(longest, kBlock) / kBlock, Scratch<W>(task.shape.head_dim, kBlock)),
        values_(round_up(longest, kBlock), task.shape.head_dim),
        scores_(kBlock, kBlock),
        sums_(kBlock, task.shape.head_dim) {}

  void take_keys(const Head<T>& keys, const Head<T>& values, std::int64_t length) {
    for (std::int64_t begin = 0; begin < length; begin += kBlock)
      copy_in_transposed(keys, {begin, std::min(begin + kBlock, length)},
                         keys_[static_cast<std::size_t>(begin / kBlock)]);
    copy_in(values, {0, length}, values_);
  }

  void run(const HeadPlace& place, const Head<T>& q, Span queries, const Head<T>& out, W* logsumexp) {
    copy_in(q, queries, queries_);
    sums_.zero(kBlock);
    max_.fill(std::numeric_limits<W>::lowest());
    total_.fill(0);
    const std::int64_t end = place.is_causal ? queries.end : place.length();
    for (std::int64_t begin = 0; begin < end; begin += kBlock)
      add_keys(place, queries, {begin, std::min(begin + kBlock, place.length())});
    for (std::int64_t i = 0; i < queries.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      copy_out(sums_, i, 1 / total_[at], out, queries.begin + i);
      logsumexp[queries.begin + i] = max_[at] + std::log(total_[at]);
    }
  }

 private:
  void add_keys(const HeadPlace& place, Span queries, Span keys) {
    const std::int64_t rows = round_up(queries.size(), kTileRows);
    scores_.zero(kBlock);
    multiply_add<W>(queries_.left(), keys_[static_cast<std::size_t>(keys.begin / kBlock)].right(),
                    scores_.block(), rows, round_up(keys.size(), kVectorLanes<W>), head_dim_);
    for (std::int64_t i = 0; i < queries.size(); ++i) soften(place, queries.begin + i, i, keys);
    multiply_add<W>(scores_.left(), values_.right(keys.begin), sums_.block(), rows, sums_.stride(),
                    keys.size());
  }

  // Scores of a row become exponentials against the largest so far; sums of earlier blocks follow when that grows.
  void soften(const HeadPlace& place, std::int64_t query, std::int64_t i, Span keys) {
    const auto at = static_cast<std::size_t>(i);
    W* row = scores_.row(i);
    const std::int64_t seen = place.num_seen(query, keys);
    const W scale = static_cast<W>(place.scale);
    const W max = lane_max<W>(seen, max_[at], [=](std::int64_t j) { return row[j] * scale; });
    if (max > max_[at]) {
      const W shrink = exponential(max_[at] - max);
      total_[at] *= shrink;
      W* sum = sums_.row(i);
      for (std::int64_t d = 0; d < sums_.stride(); ++d) sum[d] *= shrink;
      max_[at] = max;
    }
#pragma omp simd
    for (std::int64_t j = 0; j < seen; ++j) row[j] = exponential(row[j] * scale - max);
    total_[at] += lane_sum<W>(seen, [=](std::int64_t j) { return row[j]; });
    std::fill(row + seen, row + kBlock, W{0});
    if (!has_dropout_) return;
    place.fill_mask(rule_, query, keys.begin, std::span(kept_.data(), static_cast<std::size_t>(seen)));
    apply_mask(kept_.data(), static_cast<W>(rule_.scale), seen, row);
  }

  DropoutRule rule_;
  bool has_dropout_;
  std::int64_t head_dim_;
  Scratch<W> queries_;
  std::vector<Scratch<W>> keys_;  // transposed, a block each
  Scratch<W> values_, scores_, sums_;
  std::array<W, kBlock> max_{}, total_{};
  std::array<std::uint8_t, kBlock> kept_{};
};

// A piece of the forward pass's work: some queries of one head of one segment.
struct ForwardItem {
  std::size_t segment;
  std::int64_t head;
  Span queries;
};

// In the order of segments and heads, so that a thread packs the keys of a head once.
std::vector<ForwardItem> forward_items(const AttentionShape& shape,
                                       const std::vector<AttentionSegment>& segments) {
  std::vector<ForwardItem> items;
  for (std::size_t s = 0; s < segments.size(); ++s)
    for (std::int64_t head = 0; head < shape.heads; ++head)
      for (std::int64_t begin = 0, length = segments[s].end - segments[s].begin; begin < length;
           begin += kBlock)
        items.push_back({s, head, {begin, std::min(begin + kBlock, length)}});
  return items;
}

template <typename T>
void forward_typed(const AttentionTask& task, const AttentionTensors& at) {
  const AttentionShape& shape = task.shape;
  const std::vector<AttentionSegment> segments = segments_of(task);
  const std::vector<ForwardItem> items = forward_items(shape, segments);
  const std::int64_t group = shape.heads / shape.kv_heads;
  at::parallel_for(0, static_cast<std::int64_t>(items.size()), 1, [&](std::int64_t first, std::int64_t last) {
    ForwardBlocks<T> blocks(task, longest_of(segments));
    std::pair<std::size_t, std::int64_t> packed{segments.size(), 0};  // (segment, head of keys)
    for (std::int64_t i = first; i < last; ++i) {
      const ForwardItem& item = items[static_cast<std::size_t>(i)];
      const AttentionSegment& segment = segments[item.segment];
      const HeadPlace place(task, segment, item.head);
      const std::int64_t row = first_row(shape, segment), kv_head = item.head / group;
      if (packed != std::pair(item.segment, kv_head)) {
        blocks.take_keys(Head<T>(at.k, row, kv_head), Head<T>(at.v, row, kv_head), place.length());
        packed = {item.segment, kv_head};
      }
      blocks.run(place, Head<T>(at.q, row, item.head), item.queries, Head<T>(at.out, row, item.head),
                 statistics_of<Wide<T>>(shape, segment, item.head, at.logsumexp));
    }
  });
}

}  // namespace

void host_attention_forward(const AttentionTask& task, const AttentionTensors& tensors) {
  with_element_type(tensors.q.scalar_type(), [&]<typename T>(T) { forward_typed<T>(task, tensors); });
}

}  // namespace optimus
