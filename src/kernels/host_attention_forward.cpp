// The forward pass of attention on CPUs. For each query of a block, keeps the largest score and the sum of
// exponentials so far, and rescales the output when a larger score appears. No score matrix is larger than a
// block.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "kernels/host_attention.h"
#include "kernels/host_lanes.h"

namespace optimus {
namespace {

// The forward pass over blocks of queries, one head after another, with the keys of the head packed.
template <typename W>
class ForwardBlocks {
 public:
  ForwardBlocks(const RingTask& task, std::int64_t num_key_blocks)
      : rule_(task.dropout.rate),
        has_dropout_(task.dropout.rate != 0),
        head_dim_(task.shape.head_dim),
        queries_(kBlock, task.shape.head_dim),
        keys_(static_cast<std::size_t>(num_key_blocks), Scratch<W>(task.shape.head_dim, kBlock)),
        values_(num_key_blocks * kBlock, task.shape.head_dim),
        scores_(kBlock, kBlock),
        sums_(kBlock, task.shape.head_dim) {}

  // Packs keys and values into blocks, starting with block `first_block`.
  template <typename T>
  void pack_keys(std::int64_t first_block, const Head<T>& keys, const Head<T>& values, std::int64_t count) {
    for (std::int64_t begin = 0; begin < count; begin += kBlock)
      copy_in_transposed(keys, {begin, std::min(begin + kBlock, count)},
                         keys_[static_cast<std::size_t>(first_block + begin / kBlock)]);
    copy_in(values, {0, count}, values_, first_block * kBlock);
  }

  template <typename T>
  void begin(const Head<T>& q, Span queries) {
    copy_in(q, queries, queries_);
    sums_.zero(kBlock);
    max_.fill(std::numeric_limits<W>::lowest());
    total_.fill(0);
  }
  // Restores the state after the keys that produced this output and logsumexp in earlier ring steps.
  void resume(const Head<W>& out, const W* logsumexp, Span queries) {
    copy_in(out, queries, sums_);
    for (std::int64_t i = 0; i < queries.size(); ++i) {
      const W sum = logsumexp[queries.begin + i];
      if (sum < std::numeric_limits<W>::lowest()) continue;  // no keys so far
      max_[static_cast<std::size_t>(i)] = sum, total_[static_cast<std::size_t>(i)] = 1;
    }
  }

  void add(const HeadPiece& head_piece, std::int64_t first_block, Span queries) {
    const std::int64_t end = head_piece.is_causal ? queries.end : head_piece.num_keys;
    for (std::int64_t begin = 0; begin < end; begin += kBlock)
      add_keys(head_piece, queries, {begin, std::min(begin + kBlock, head_piece.num_keys)},
               first_block + begin / kBlock);
  }

  template <typename T>
  void write_output(const Head<T>& out, W* logsumexp, Span queries) const {
    for (std::int64_t i = 0; i < queries.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      copy_out(sums_, i, 1 / total_[at], out, queries.begin + i);
      logsumexp[queries.begin + i] = max_[at] + std::log(total_[at]);
    }
  }

 private:
  void add_keys(const HeadPiece& head_piece, Span queries, Span keys, std::int64_t block) {
    const std::int64_t rows = round_up(queries.size(), kTileRows);
    scores_.zero(kBlock);
    multiply_add<W>(queries_.left(), keys_[static_cast<std::size_t>(block)].right(), scores_.block(), rows,
                    round_up(keys.size(), kVectorLanes<W>), head_dim_);
    for (std::int64_t i = 0; i < queries.size(); ++i) update_softmax(head_piece, queries.begin + i, i, keys);
    multiply_add<W>(scores_.left(), values_.right(block * kBlock), sums_.block(), rows, sums_.stride(),
                    keys.size());
  }

  // Replaces the scores of a row by exponentials relative to the largest score so far. When the largest score
  // grows, rescales the sums of earlier blocks.
  void update_softmax(const HeadPiece& head_piece, std::int64_t query, std::int64_t i, Span keys) {
    const auto at = static_cast<std::size_t>(i);
    W* row = scores_.row(i);
    const std::int64_t num_visible = head_piece.num_visible_keys(query, keys);
    const W scale = static_cast<W>(head_piece.scale);
    const W max = lane_max<W>(num_visible, max_[at], [=](std::int64_t j) { return row[j] * scale; });
    if (max > max_[at]) {
      const W shrink = exponential(max_[at] - max);
      total_[at] *= shrink;
      W* sum = sums_.row(i);
      for (std::int64_t d = 0; d < sums_.stride(); ++d) sum[d] *= shrink;
      max_[at] = max;
    }
#pragma omp simd
    for (std::int64_t j = 0; j < num_visible; ++j) row[j] = exponential(row[j] * scale - max);
    total_[at] += lane_sum<W>(num_visible, [=](std::int64_t j) { return row[j]; });
    std::fill(row + num_visible, row + kBlock, W{0});
    if (!has_dropout_) return;
    head_piece.fill_mask(rule_, query, keys.begin,
                         std::span(retained_.data(), static_cast<std::size_t>(num_visible)));
    apply_mask(retained_.data(), static_cast<W>(rule_.scale), num_visible, row);
  }

  DropoutRule rule_;
  bool has_dropout_;
  std::int64_t head_dim_;
  Scratch<W> queries_;
  std::vector<Scratch<W>> keys_;  // transposed, one block each
  Scratch<W> values_, scores_, sums_;
  std::array<W, kBlock> max_{}, total_{};
  std::array<std::uint8_t, kBlock> retained_{};
};

// A work item of the forward pass: some queries of one head, and the keys of all pieces with these queries.
struct ForwardItem {
  Span pieces;
  std::int64_t head;
  Span queries;  // relative to the start of the pieces
};

struct ForwardWork {
  std::vector<ForwardItem> items;
  std::vector<std::int64_t> costs;
  std::int64_t num_key_blocks = 0;  // largest number of key blocks of an item
};

const RingPiece& piece_at(const RingTask& task, std::int64_t index) {
  return task.pieces[static_cast<std::size_t>(index)];
}

std::int64_t num_blocks(std::int64_t rows) { return (rows + kBlock - 1) / kBlock; }

// Returns the items, ordered by pieces and heads, so that a thread packs the keys of a head only once.
ForwardWork forward_work(const RingTask& task) {
  ForwardWork forward;
  for (const Span pieces : pieces_by_queries(task.pieces)) {
    std::int64_t key_blocks = 0;
    for (std::int64_t i = pieces.begin; i < pieces.end; ++i)
      key_blocks += num_blocks(piece_at(task, i).keys.size());
    forward.num_key_blocks = std::max(forward.num_key_blocks, key_blocks);
    const std::int64_t count = piece_at(task, pieces.begin).queries.size();
    for (std::int64_t head = 0; head < task.shape.heads; ++head)
      for (std::int64_t begin = 0; begin < count; begin += kBlock) {
        const Span queries{begin, std::min(begin + kBlock, count)};
        std::int64_t num_keys = 0;
        for (std::int64_t i = pieces.begin; i < pieces.end; ++i)
          num_keys += piece_at(task, i).is_causal ? queries.end : piece_at(task, i).keys.size();
        forward.items.push_back({pieces, head, queries});
        forward.costs.push_back(num_keys * queries.size());
      }
  }
  return forward;
}

// The work of one thread, which processes items one after another.
template <typename T>
class ForwardThread {
 public:
  using W = Wide<T>;
  ForwardThread(const RingTask& task, const AttentionTensors& tensors, OutputMode output_mode,
                std::int64_t num_key_blocks)
      : task_(task), tensors_(tensors), output_mode_(output_mode), blocks_(task, num_key_blocks) {}

  void run(const ForwardItem& item) {
    pack_keys(item);
    const RingPiece& first = piece_at(task_, item.pieces.begin);
    const std::int64_t row = first_query_row(task_, first);
    W* logsumexp = statistics_of<W>(task_, first, item.head, tensors_.logsumexp);
    blocks_.begin(Head<T>(tensors_.q, row, item.head), item.queries);
    if (output_mode_ == OutputMode::added)
      blocks_.resume(Head<W>(tensors_.out, row, item.head), logsumexp, item.queries);
    std::int64_t block = 0;
    for (std::int64_t i = item.pieces.begin; i < item.pieces.end; ++i) {
      blocks_.add(HeadPiece(task_, piece_at(task_, i), item.head), block, item.queries);
      block += num_blocks(piece_at(task_, i).keys.size());
    }
    if (output_mode_ == OutputMode::added)
      blocks_.write_output(Head<W>(tensors_.out, row, item.head), logsumexp, item.queries);
    else
      blocks_.write_output(Head<T>(tensors_.out, row, item.head), logsumexp, item.queries);
  }

 private:
  void pack_keys(const ForwardItem& item) {
    const std::int64_t kv_head = item.head / (task_.shape.heads / task_.shape.kv_heads);
    if (packed_ == std::pair(item.pieces, kv_head)) return;
    packed_ = {item.pieces, kv_head};
    std::int64_t block = 0;
    for (std::int64_t i = item.pieces.begin; i < item.pieces.end; ++i) {
      const RingPiece& piece = piece_at(task_, i);
      const std::int64_t row = first_key_row(task_, piece);
      blocks_.pack_keys(block, Head<T>(tensors_.k, row, kv_head), Head<T>(tensors_.v, row, kv_head),
                        piece.keys.size());
      block += num_blocks(piece.keys.size());
    }
  }

  const RingTask& task_;
  const AttentionTensors& tensors_;
  OutputMode output_mode_;
  ForwardBlocks<W> blocks_;
  std::pair<Span, std::int64_t> packed_{};  // pieces and head of the packed keys; initially empty
};

}  // namespace

void host_attention_forward(const RingTask& task, const AttentionTensors& tensors, OutputMode output_mode) {
  const ForwardWork forward = forward_work(task);
  with_element_type(tensors.q.scalar_type(), [&]<typename T>(T) {
    parallel_for_by_cost(forward.costs, [&](Span items) {
      ForwardThread<T> thread(task, tensors, output_mode, forward.num_key_blocks);
      for (std::int64_t i = items.begin; i < items.end; ++i)
        thread.run(forward.items[static_cast<std::size_t>(i)]);
    });
  });
}

}  // namespace optimus
