// The backward pass of attention on CPUs. Recomputes probabilities from logsumexp, one block of keys at a
// time. A single thread computes the whole gradient of a key head, so the order of summation is fixed.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "kernels/host_attention.h"
#include "kernels/host_lanes.h"

namespace optimus {
namespace {

// The backward pass of the query heads that share a key head, one block of keys at a time.
template <typename W>
class BackwardBlocks {
 public:
  BackwardBlocks(const RingTask& task, std::int64_t max_queries)
      : rule_(task.dropout.rate),
        has_dropout_(task.dropout.rate != 0),
        head_dim_(task.shape.head_dim),
        keys_(kBlock, task.shape.head_dim),
        keys_transposed_(task.shape.head_dim, kBlock),
        values_transposed_(task.shape.head_dim, kBlock),
        key_sums_(kBlock, task.shape.head_dim),
        value_sums_(kBlock, task.shape.head_dim),
        probabilities_(kBlock, kBlock),
        score_gradients_(kBlock, kBlock) {
    for (std::int64_t i = 0; i < task.shape.heads / task.shape.kv_heads; ++i)
      queries_.emplace_back(max_queries, task.shape.head_dim);
  }

  template <typename T>
  void load_queries(std::int64_t member, const Head<T>& q, const Head<T>& dout, const Head<T>& out,
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

  // Adds to the gradients of the queries, and computes the gradients of the keys and values for
  // key_gradient() and value_gradient(). `head_pieces` has one entry for each query head of the group.
  template <typename T>
  void run(const std::vector<HeadPiece>& head_pieces, const Head<T>& k, const Head<T>& v, Span keys) {
    copy_in(k, keys, keys_);
    copy_in_transposed(k, keys, keys_transposed_);
    copy_in_transposed(v, keys, values_transposed_);
    key_sums_.zero(kBlock), value_sums_.zero(kBlock);
    for (std::size_t member = 0; member < head_pieces.size(); ++member) {
      const std::int64_t count = head_pieces[member].num_queries;
      const std::int64_t first = head_pieces[member].is_causal ? keys.begin / kBlock * kBlock : 0;
      for (std::int64_t begin = first; begin < count; begin += kBlock)
        add_queries(head_pieces[member], queries_[member], {begin, std::min(begin + kBlock, count)}, keys);
    }
  }

  // The gradients of the keys and values of the last run() are in the first rows.
  const Scratch<W>& key_gradient() const { return key_sums_; }
  const Scratch<W>& value_gradient() const { return value_sums_; }
  const Scratch<W>& query_gradient(std::int64_t member) const {
    return queries_[static_cast<std::size_t>(member)].dq;
  }

 private:
  struct PerQuery {
    Scratch<W> q, dout, dq;
    // [query]: sum of dout * out over the head dimension; the softmax gradient subtracts it from every
    // score gradient of the row
    std::vector<W> delta;
    const W* logsumexp = nullptr;
    PerQuery(std::int64_t length, std::int64_t head_dim)
        : q(round_up(length, kBlock), head_dim),
          dout(round_up(length, kBlock), head_dim),
          dq(round_up(length, kBlock), head_dim),
          delta(static_cast<std::size_t>(length)) {}
  };

  void add_queries(const HeadPiece& head_piece, PerQuery& of, Span queries, Span keys) {
    const std::int64_t rows = round_up(queries.size(), kTileRows),
                       key_rows = round_up(keys.size(), kTileRows);
    const std::int64_t columns = round_up(keys.size(), kVectorLanes<W>), width = keys_.stride();
    const std::int64_t at = queries.begin;
    probabilities_.zero(kBlock), score_gradients_.zero(kBlock);
    multiply_add<W>(of.q.left(at), keys_transposed_.right(), probabilities_.block(), rows, columns,
                    head_dim_);
    multiply_add<W>(of.dout.left(at), values_transposed_.right(), score_gradients_.block(), rows, columns,
                    head_dim_);
    for (std::int64_t i = 0; i < queries.size(); ++i) compute_row_gradients(head_piece, of, at + i, i, keys);
    multiply_add<W>(probabilities_.transposed(), of.dout.right(at), value_sums_.block(), key_rows, width,
                    queries.size());
    multiply_add<W>(score_gradients_.transposed(), of.q.right(at), key_sums_.block(), key_rows, width,
                    queries.size());
    multiply_add<W>(score_gradients_.left(), keys_.right(), of.dq.block(at), rows, width, keys.size());
  }

  // Converts a row of scores to probabilities after dropout, which the gradient of the values needs. Also
  // converts a row of probability gradients to score gradients.
  void compute_row_gradients(const HeadPiece& head_piece, const PerQuery& of, std::int64_t query,
                             std::int64_t i, Span keys) {
    W *probability = probabilities_.row(i), *score_gradient = score_gradients_.row(i);
    const std::int64_t num_visible = head_piece.num_visible_keys(query, keys);
    const W scale = static_cast<W>(head_piece.scale), logsumexp = of.logsumexp[query];
    const W delta = of.delta[static_cast<std::size_t>(query)];
    if (has_dropout_) {
      head_piece.fill_mask(rule_, query, keys.begin,
                           std::span(retained_.data(), static_cast<std::size_t>(num_visible)));
      apply_mask(retained_.data(), static_cast<W>(rule_.scale), num_visible, score_gradient);
    }
#pragma omp simd
    for (std::int64_t j = 0; j < num_visible; ++j) {
      const W softmax = exponential(probability[j] * scale - logsumexp);
      probability[j] = softmax;
      score_gradient[j] = softmax * (score_gradient[j] - delta) * scale;
    }
    if (has_dropout_) apply_mask(retained_.data(), static_cast<W>(rule_.scale), num_visible, probability);
    std::fill(probability + num_visible, probability + kBlock, W{0});
    std::fill(score_gradient + num_visible, score_gradient + kBlock, W{0});
  }

  DropoutRule rule_;
  bool has_dropout_;
  std::int64_t head_dim_;
  std::vector<PerQuery> queries_;
  Scratch<W> keys_, keys_transposed_, values_transposed_, key_sums_, value_sums_, probabilities_,
      score_gradients_;
  std::array<std::uint8_t, kBlock> retained_{};
};

// The work of one thread. For some pieces, computes all gradients of one key head after another.
template <typename T>
class BackwardThread {
 public:
  using W = Wide<T>;
  BackwardThread(const RingTask& task, const AttentionTensors& tensors, OutputMode output_mode,
                 std::int64_t max_queries)
      : task_(task), tensors_(tensors), output_mode_(output_mode), blocks_(task, max_queries) {}

  // Processes pieces that all have the same queries.
  void run(Span pieces, std::int64_t kv_head) {
    const RingPiece& first = task_.pieces[static_cast<std::size_t>(pieces.begin)];
    const std::int64_t row = first_query_row(task_, first), count = first.queries.size();
    for (std::int64_t member = 0; member < group(); ++member) {
      const std::int64_t head = kv_head * group() + member;
      blocks_.load_queries(member, Head<T>(tensors_.q, row, head), Head<T>(tensors_.dout, row, head),
                           Head<T>(tensors_.out, row, head),
                           statistics_of<W>(task_, first, head, tensors_.logsumexp), count);
    }
    for (std::int64_t i = pieces.begin; i < pieces.end; ++i)
      run_keys(task_.pieces[static_cast<std::size_t>(i)], kv_head);
    for (std::int64_t member = 0; member < group(); ++member)
      copy_gradient(blocks_.query_gradient(member), tensors_.dq, row, kv_head * group() + member, count);
  }

 private:
  void run_keys(const RingPiece& piece, std::int64_t kv_head) {
    std::vector<HeadPiece> head_pieces;
    for (std::int64_t member = 0; member < group(); ++member)
      head_pieces.emplace_back(task_, piece, kv_head * group() + member);
    const std::int64_t row = first_key_row(task_, piece), count = piece.keys.size();
    const Head<T> k(tensors_.k, row, kv_head), v(tensors_.v, row, kv_head);
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      const Span keys{begin, std::min(begin + kBlock, count)};
      blocks_.run(head_pieces, k, v, keys);
      copy_gradient(blocks_.key_gradient(), tensors_.dk, row + begin, kv_head, keys.size());
      copy_gradient(blocks_.value_gradient(), tensors_.dv, row + begin, kv_head, keys.size());
    }
  }

  // Writes or adds the first `count` rows of `from` to a head, starting at its row `row`.
  void copy_gradient(const Scratch<W>& from, const at::Tensor& to, std::int64_t row, std::int64_t head,
                     std::int64_t count) const {
    if (output_mode_ == OutputMode::added) {
      const Head<W> rows(to, row, head);
      for (std::int64_t i = 0; i < count; ++i) add_out(from, i, rows, i);
    } else {
      const Head<T> rows(to, row, head);
      for (std::int64_t i = 0; i < count; ++i) copy_out(from, i, W{1}, rows, i);
    }
  }

  std::int64_t group() const { return task_.shape.heads / task_.shape.kv_heads; }

  const RingTask& task_;
  const AttentionTensors& tensors_;
  OutputMode output_mode_;
  BackwardBlocks<W> blocks_;
};

// A work item: one key head of some pieces. Pieces of different items share no rows. `runs` are ranges of
// pieces with the same queries.
struct BackwardItem {
  std::vector<Span> runs;
  std::int64_t kv_head = 0;
};

struct BackwardWork {
  std::vector<BackwardItem> items;
  std::vector<std::int64_t> costs;
  std::int64_t max_queries = 0;  // largest number of queries in a piece
};

BackwardWork backward_work(const RingTask& task) {
  BackwardWork backward;
  const std::vector<Span> runs = pieces_by_queries(task.pieces);
  auto run = runs.begin();
  for (const Span range : independent_ranges(task.pieces)) {
    BackwardItem item;
    std::int64_t cost = 0;
    for (; run != runs.end() && run->begin < range.end; ++run) item.runs.push_back(*run);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const RingPiece& piece = task.pieces[static_cast<std::size_t>(i)];
      backward.max_queries = std::max(backward.max_queries, piece.queries.size());
      cost += num_scores(piece);
    }
    for (item.kv_head = 0; item.kv_head < task.shape.kv_heads; ++item.kv_head)
      backward.items.push_back(item), backward.costs.push_back(cost);
  }
  return backward;
}

}  // namespace

void host_attention_backward(const RingTask& task, const AttentionTensors& tensors, OutputMode output_mode) {
  const BackwardWork backward = backward_work(task);
  with_element_type(tensors.q.scalar_type(), [&]<typename T>(T) {
    parallel_for_by_cost(backward.costs, [&](Span items) {
      BackwardThread<T> thread(task, tensors, output_mode, backward.max_queries);
      for (std::int64_t i = items.begin; i < items.end; ++i) {
        const BackwardItem& item = backward.items[static_cast<std::size_t>(i)];
        for (const Span run : item.runs) thread.run(run, item.kv_head);
      }
    });
  });
}

}  // namespace optimus
