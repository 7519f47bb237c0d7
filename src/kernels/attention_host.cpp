// Attention on processors, our own: blocks of queries against blocks of keys, never a whole matrix of scores, with dropout masks
// that are a function of (sample, head, query, key) alone.
//
// Forward keeps, for a block of queries, the largest score and the sum of exponentials so far, and rescales the output when a
// larger score comes. Backward computes the probabilities anew from logsumexp. Blocks are copied into scratch in the wider
// type, padded so that products need no odd ends: padded queries are computed and dropped, padded keys get probability zero.
// Read next: host_product.h.
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/host_dropout.h"
#include "kernels/host_lanes.h"
#include "kernels/host_product.h"
#include "kernels/host_rows.h"

namespace optimus {
namespace {

constexpr std::int64_t kBlock = 64;  // queries and keys of a block: its products fit the nearest cache

std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

// One head of a [rows, heads, head_dim] tensor.
template <typename T>
struct Head {
  T* data;
  std::int64_t row_stride, head_dim;

  Head(const at::Tensor& tensor, std::int64_t first_row, std::int64_t head)
      : data(tensor.data_ptr<T>() + first_row * tensor.stride(0) + head * tensor.stride(1)),
        row_stride(tensor.stride(0)),
        head_dim(tensor.size(2)) {}
  T* row(std::int64_t index) const { return data + index * row_stride; }
};

// A [rows, width] block of scratch, width padded to whole vectors.
template <typename Number>
class Scratch {
 public:
  Scratch(std::int64_t rows, std::int64_t width)
      : stride_(round_up(width, kVectorLanes<Number>)),
        values_(static_cast<std::size_t>(round_up(rows, kTileRows) * stride_), Number{0}) {}
  Number* row(std::int64_t index) { return values_.data() + index * stride_; }
  const Number* row(std::int64_t index) const { return values_.data() + index * stride_; }
  std::int64_t stride() const { return stride_; }
  void zero(std::int64_t rows) { std::fill_n(values_.data(), rows * stride_, Number{0}); }
  Block<Number> block(std::int64_t first_row = 0) { return {row(first_row), stride_}; }
  Block<const Number> right(std::int64_t first_row = 0) const { return {row(first_row), stride_}; }
  LeftFactor<Number> left(std::int64_t first_row = 0) const { return {row(first_row), stride_, 1}; }
  LeftFactor<Number> transposed() const { return {values_.data(), 1, stride_}; }

 private:
  std::int64_t stride_;
  std::vector<Number> values_;
};

// Rows begin .. end of a head into scratch rows `at` onwards.
template <typename T>
void copy_in(const Head<T>& head, Span rows, Scratch<Wide<T>>& to, std::int64_t at = 0) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* from = head.row(r);
    Wide<T>* row = to.row(at + r - rows.begin);
#pragma omp simd
    for (std::int64_t d = 0; d < head.head_dim; ++d) row[d] = load(from[d]);
  }
}

// to[d, key] = head[key, d]: the right factor of scores. Columns beyond the block keep what they held; they are masked later.
template <typename T>
void copy_in_transposed(const Head<T>& head, Span rows, Scratch<Wide<T>>& to) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* from = head.row(r);
    Wide<T>* column = to.row(0) + (r - rows.begin);
    for (std::int64_t d = 0; d < head.head_dim; ++d) column[d * to.stride()] = load(from[d]);
  }
}

template <typename T>
void copy_out(const Scratch<Wide<T>>& from, std::int64_t at, Wide<T> factor, const Head<T>& head,
              std::int64_t row) {
  T* to = head.row(row);
  const Wide<T>* values = from.row(at);
#pragma omp simd
  for (std::int64_t d = 0; d < head.head_dim; ++d) store(to[d], values[d] * factor);
}

// What a task is made of: one head of one segment, its masks and which keys a query sees.
struct HeadPlace {
  AttentionSegment segment;
  std::int64_t head = 0;  // of q
  bool is_causal = true;
  double scale = 1;
  std::int64_t max_positions = 0;
  RandomKey key{};

  HeadPlace(const AttentionTask& task, const AttentionSegment& where, std::int64_t query_head)
      : segment(where),
        head(query_head),
        is_causal(task.shape.is_causal),
        scale(task.shape.scale),
        max_positions(task.dropout.max_positions) {
    if (task.dropout.rate == 0) return;
    const std::int64_t sample = task.dropout.samples[static_cast<std::size_t>(where.sequence)];
    key = task.dropout.key.with(static_cast<std::uint64_t>(sample))
              .with(static_cast<std::uint64_t>(task.dropout.first_head + query_head));
  }
  std::int64_t length() const { return segment.end - segment.begin; }
  // How many of the keys first .. first + count the query sees (all indices from the segment's start).
  std::int64_t num_seen(std::int64_t query, Span keys) const {
    return is_causal ? std::clamp<std::int64_t>(query + 1 - keys.begin, 0, keys.size()) : keys.size();
  }
  // Which probabilities of a row are kept.
  void fill_mask(const DropoutRule& rule, std::int64_t query, std::int64_t first_key,
                 std::span<std::uint8_t> kept) const {
    const std::int64_t element = (segment.begin + query) * max_positions + segment.begin + first_key;
    fill_kept(key, static_cast<std::uint64_t>(element), rule, kept);
  }
};

// row[j] = kept[j] ? row[j] * scale : 0
template <typename Number>
void apply_mask(const std::uint8_t* kept, Number scale, std::int64_t count, Number* row) {
#pragma omp simd
  for (std::int64_t j = 0; j < count; ++j) row[j] *= kept[j] != 0 ? scale : Number{0};
}

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

// The tensors of a call.
struct AttentionTensors {
  const at::Tensor &dout, &q, &k, &v, &out, &logsumexp, &dq, &dk, &dv;
};

template <typename W>
W* statistics_of(const AttentionShape& shape, const AttentionSegment& segment, std::int64_t head,
                 const at::Tensor& logsumexp) {
  return flat_data<W>(logsumexp) + (segment.sequence * shape.heads + head) * shape.length + segment.begin;
}

std::int64_t first_row(const AttentionShape& shape, const AttentionSegment& segment) {
  return segment.sequence * shape.length + segment.begin;
}

std::int64_t longest_of(const std::vector<AttentionSegment>& segments) {
  std::int64_t longest = 0;
  for (const AttentionSegment& segment : segments) longest = std::max(longest, segment.end - segment.begin);
  return longest;
}

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

class HostAttention final : public Attention {
 public:
  void forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               at::Tensor& out, at::Tensor& logsumexp) const override {
    zero_gaps(task, out);
    if (!task.segments.empty()) logsumexp.zero_();
    const AttentionTensors all{out, q, k, v, out, logsumexp, q, k, v};
    with_element_type(q.scalar_type(), [&]<typename T>(T) { forward_typed<T>(task, all); });
  }

  void backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, at::Tensor& dq,
                at::Tensor& dk, at::Tensor& dv) const override {
    zero_gaps(task, dq), zero_gaps(task, dk), zero_gaps(task, dv);
    const AttentionTensors all{dout, q, k, v, out, logsumexp, dq, dk, dv};
    with_element_type(q.scalar_type(), [&]<typename T>(T) { backward_typed<T>(task, all); });
  }
};

}  // namespace

std::unique_ptr<Attention> make_host_attention() { return std::make_unique<HostAttention>(); }

}  // namespace optimus
