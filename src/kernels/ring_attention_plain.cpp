// Ring attention computed by its definition with ATen operations. It is the reference for the host
// implementation, and the implementation used on CUDA.
//
// Equal pieces of consecutive sequences are computed together. Queries are processed in blocks, so that the
// score matrix stays small for any sequence length.
#include <ATen/TensorOperators.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "kernels/ring_attention.h"

namespace optimus {
namespace {

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// A piece that is the same in `num_sequences` consecutive sequences, starting with the piece's own sequence.
struct EqualPieces {
  RingPiece piece;
  std::int64_t num_sequences = 1;

  bool is_continued_by(RingPiece next) const {
    if (next.sequence != piece.sequence + num_sequences) return false;
    next.sequence = piece.sequence;
    return next == piece;
  }
};

std::vector<EqualPieces> merge_equal_pieces(const std::vector<RingPiece>& pieces) {
  std::vector<EqualPieces> result;
  // Maps (first query, first key) to the index of the last entry of `result` that starts there.
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> last;
  for (const RingPiece& piece : pieces) {
    const auto [entry, is_new] = last.try_emplace({piece.queries.begin, piece.keys.begin}, result.size());
    if (!is_new && result[entry->second].is_continued_by(piece)) {
      ++result[entry->second].num_sequences;
    } else {
      entry->second = result.size();
      result.push_back({piece, 1});
    }
  }
  return result;
}

// Some queries of equal pieces, and all keys that these queries attend to. Tensors are [sequences, heads,
// rows, head_dim] in the wide type.
class RingBlock {
 public:
  RingBlock(const RingTask& task, const EqualPieces& equal_pieces, Span queries)
      : task_(task),
        equal_pieces_(equal_pieces),
        queries_(queries),
        num_keys_(equal_pieces.piece.is_causal ? queries.end : equal_pieces.piece.keys.size()) {}

  // Return views of the block's rows, [sequences, heads, rows, head_dim].
  at::Tensor query_rows(const at::Tensor& tensor) const {
    const std::int64_t begin = equal_pieces_.piece.queries.begin + queries_.begin;
    return rows(tensor, task_.own_length, {begin, begin + queries_.size()});
  }
  at::Tensor key_rows(const at::Tensor& tensor) const {
    const std::int64_t begin = equal_pieces_.piece.keys.begin;
    return rows(tensor, task_.key_length, {begin, begin + num_keys_});
  }
  at::Tensor statistics(const at::Tensor& logsumexp) const {  // [sequences, heads, rows, 1]
    return logsumexp.narrow(0, equal_pieces_.piece.sequence, equal_pieces_.num_sequences)
        .narrow(2, equal_pieces_.piece.queries.begin + queries_.begin, queries_.size())
        .unsqueeze(3);
  }

  // grouped() merges the heads of each group to [sequences, kv_heads, group * rows, ..], for GEMMs with the
  // keys. ungroup() is the inverse.
  at::Tensor grouped(const at::Tensor& heads) const {
    return heads.reshape({heads.size(0), task_.shape.kv_heads, -1, heads.size(3)});
  }
  at::Tensor ungroup(const at::Tensor& groups) const {
    return groups.reshape({groups.size(0), task_.shape.heads, queries_.size(), groups.size(3)});
  }

  // [sequences, heads, rows, keys]
  at::Tensor scores(const at::Tensor& query, const at::Tensor& key) const {
    at::Tensor result = ungroup(at::matmul(grouped(query), key.transpose(2, 3))) * task_.shape.scale;
    if (!equal_pieces_.piece.is_causal) return result;
    const at::Tensor is_later =
        at::ones({queries_.size(), num_keys_}, query.options().dtype(at::kBool)).triu(queries_.begin + 1);
    return result.masked_fill_(is_later, -std::numeric_limits<double>::infinity());
  }

  // Returns the dropout factor of each score. Undefined without dropout.
  at::Tensor factors(const at::Tensor& like) const {
    if (task_.dropout.rate == 0) return {};
    const RingPiece& piece = equal_pieces_.piece;
    const Span query_positions{piece.first_query + queries_.begin, piece.first_query + queries_.end},
        key_positions{piece.first_key, piece.first_key + num_keys_};
    std::vector<at::Tensor> sequences;
    for (std::int64_t i = 0; i < equal_pieces_.num_sequences; ++i)
      sequences.push_back(dropout_factors(task_.dropout, piece.sequence + i, task_.shape.heads,
                                          query_positions, key_positions, like));
    return at::stack(sequences);
  }

 private:
  at::Tensor rows(const at::Tensor& tensor, std::int64_t length, Span span) const {
    return tensor.narrow(0, equal_pieces_.piece.sequence * length, equal_pieces_.num_sequences * length)
        .unflatten(0, {equal_pieces_.num_sequences, length})
        .narrow(1, span.begin, span.size())
        .transpose(1, 2);
  }

  const RingTask& task_;
  const EqualPieces& equal_pieces_;
  Span queries_;  // relative to the start of the piece
  std::int64_t num_keys_;
};

// Calls visit(RingBlock) for all blocks of a task.
template <typename Visit>
void for_each_block(const RingTask& task, const at::Tensor& q, std::int64_t max_score_bytes, Visit visit) {
  const std::int64_t element_size = q.scalar_type() == at::kDouble ? 8 : 4;
  for (const EqualPieces& equal_pieces : merge_equal_pieces(task.pieces)) {
    const std::int64_t row_bytes =
        equal_pieces.num_sequences * task.shape.heads * equal_pieces.piece.keys.size() * element_size;
    const std::int64_t size = std::max<std::int64_t>(1, max_score_bytes / row_bytes);
    for (std::int64_t begin = 0, end = equal_pieces.piece.queries.size(); begin < end; begin += size)
      visit(RingBlock(task, equal_pieces, {begin, std::min(begin + size, end)}));
  }
}

class PlainRingAttention final : public RingAttention {
 public:
  explicit PlainRingAttention(std::int64_t max_score_bytes) : max_score_bytes_(max_score_bytes) {}

  void forward(const RingTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               at::Tensor& out, at::Tensor& logsumexp) const override {
    check_ring_task(task, q, k);
    for_each_block(task, q, max_score_bytes_, [&](const RingBlock& block) {
      const at::Tensor scores = block.scores(widened(block.query_rows(q)), widened(block.key_rows(k)));
      const at::Tensor previous_statistics = block.statistics(logsumexp);
      const at::Tensor new_statistics = at::logaddexp(previous_statistics, scores.logsumexp({3}, true));
      at::Tensor probabilities = (scores - new_statistics).exp_();
      const at::Tensor factors = block.factors(probabilities);
      if (factors.defined()) probabilities.mul_(factors);
      const at::Tensor values = at::matmul(block.grouped(probabilities), widened(block.key_rows(v)));
      block.query_rows(out).mul_((previous_statistics - new_statistics).exp_()).add_(block.ungroup(values));
      previous_statistics.copy_(new_statistics);
    });
  }

  void backward(const RingTask& task, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, at::Tensor& dq,
                at::Tensor& dk, at::Tensor& dv) const override {
    check_ring_task(task, q, k);
    for_each_block(task, q, max_score_bytes_, [&](const RingBlock& block) {
      const at::Tensor query = widened(block.query_rows(q)), key = widened(block.key_rows(k));
      const at::Tensor upstream = widened(block.query_rows(dout)), groups = block.grouped(upstream);
      const at::Tensor probabilities = (block.scores(query, key) - block.statistics(logsumexp)).exp_();
      const at::Tensor factors = block.factors(probabilities);
      const at::Tensor dropped_probabilities = factors.defined() ? probabilities * factors : probabilities;
      at::Tensor score_gradients =
          block.ungroup(at::matmul(groups, widened(block.key_rows(v)).transpose(2, 3)));
      if (factors.defined()) score_gradients.mul_(factors);
      const at::Tensor delta = (upstream * widened(block.query_rows(out))).sum(3, true);
      const at::Tensor dscores =
          block.grouped(score_gradients.sub_(delta).mul_(probabilities).mul_(task.shape.scale));
      block.query_rows(dq).add_(block.ungroup(at::matmul(dscores, key)));
      block.key_rows(dk).add_(at::matmul(dscores.transpose(2, 3), block.grouped(query)));
      block.key_rows(dv).add_(at::matmul(block.grouped(dropped_probabilities).transpose(2, 3), groups));
    });
  }

 private:
  std::int64_t max_score_bytes_;
};

}  // namespace

std::unique_ptr<RingAttention> make_plain_ring_attention(std::int64_t max_score_bytes) {
  return std::make_unique<PlainRingAttention>(max_score_bytes);
}

}  // namespace optimus
