// Determines which scores a ring step computes. Also contains the code shared by the implementations of ring
// attention.
//
//   cp 2, causal: part 0 has chunks 0 and 3 of a sequence, part 1 has 1 and 2.
//   \ causal, # all scores, . no scores
//
//                  keys of part 0   of part 1
//                         0  3        1  2
//     queries of part 0
//         0               \  .        .  .
//         3               #  \        #  #
//     queries of part 1
//         1               #  .        \  .
//         2               #  .        #  \    1 and 2 are adjacent, so these three are one triangle
#include "kernels/ring_attention.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {
namespace {

// A span of positions, and the index of its first row among the rows of its context part.
struct PlacedSpan {
  Span positions;
  std::int64_t first_row = 0;
  Span rows(Span of_positions) const {
    return {of_positions.begin - positions.begin + first_row, of_positions.end - positions.begin + first_row};
  }
};

// Merges adjacent spans, because the two chunks of the last context part form one triangle of scores.
std::vector<PlacedSpan> place_spans(const ContextPositions& spans, std::int64_t length) {
  std::vector<PlacedSpan> result;
  std::int64_t row = 0, min_begin = 0;
  for (const Span& span : spans) {
    ensure(span.begin >= min_begin && span.begin <= span.end && span.end <= length,
           "context positions {}..{} must start at {} or later and be inside a sequence of length {}",
           span.begin, span.end, min_begin, length);
    if (!result.empty() && result.back().positions.end == span.begin)
      result.back().positions.end = span.end;
    else if (span.size() > 0)
      result.push_back({span, row});
    row += span.size(), min_begin = span.end;
  }
  return result;
}

Span intersection(const Span& a, const Span& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

std::vector<RingPiece> ring_pieces(const ContextPositions& own_positions,
                                   const ContextPositions& peer_positions, std::int64_t sequences,
                                   std::int64_t length, bool is_causal,
                                   const std::vector<AttentionSegment>& segments) {
  const std::vector<PlacedSpan> own_spans = place_spans(own_positions, length),
                                peer_spans = place_spans(peer_positions, length);
  const AttentionShape shape{.sequences = sequences, .length = length, .heads = 1, .kv_heads = 1};
  std::vector<RingPiece> pieces;
  for (const AttentionSegment& segment : segments_of({.shape = shape, .segments = segments, .dropout = {}}))
    for (const PlacedSpan& query_span : own_spans)
      for (const PlacedSpan& key_span : peer_spans) {
        const Span segment_span{segment.begin, segment.end};
        const Span queries = intersection(query_span.positions, segment_span),
                   keys = intersection(key_span.positions, segment_span);
        const bool is_same = query_span.positions == key_span.positions;
        ensure(is_same || intersection(query_span.positions, key_span.positions).size() == 0,
               "context positions {}..{} and {}..{} overlap", query_span.positions.begin,
               query_span.positions.end, key_span.positions.begin, key_span.positions.end);
        const bool is_later = is_causal && !is_same && keys.begin > queries.begin;
        if (queries.size() == 0 || keys.size() == 0 || is_later) continue;
        pieces.push_back({.sequence = segment.sequence,
                          .queries = query_span.rows(queries),
                          .keys = key_span.rows(keys),
                          .is_causal = is_causal && is_same,
                          .first_query = queries.begin,
                          .first_key = keys.begin});
      }
  return pieces;
}

void check_ring_task(const RingTask& task, const at::Tensor& q, const at::Tensor& k) {
  const AttentionShape& shape = task.shape;
  check_attention(shape, task.dropout);
  ensure(q.size(0) >= shape.sequences * task.own_length && q.size(1) == shape.heads &&
             k.size(0) >= shape.sequences * task.key_length && k.size(1) == shape.kv_heads &&
             q.size(2) == shape.head_dim && k.size(2) == shape.head_dim,
         "ring attention of {} sequences, {} queries with {} heads, {} keys with {} heads, head dimension "
         "{}: q has {} rows, k has {} rows",
         shape.sequences, task.own_length, shape.heads, task.key_length, shape.kv_heads, shape.head_dim,
         q.size(0), k.size(0));
  for (const RingPiece& piece : task.pieces) {
    ensure(piece.sequence >= 0 && piece.sequence < shape.sequences && piece.queries.begin >= 0 &&
               piece.queries.begin < piece.queries.end && piece.queries.end <= task.own_length &&
               piece.keys.begin >= 0 && piece.keys.begin < piece.keys.end &&
               piece.keys.end <= task.key_length,
           "invalid ring piece of sequence {}: queries {}..{} of {}, keys {}..{} of {}", piece.sequence,
           piece.queries.begin, piece.queries.end, task.own_length, piece.keys.begin, piece.keys.end,
           task.key_length);
    ensure(!piece.is_causal || piece.queries.size() == piece.keys.size(),
           "causal ring piece: expected as many queries as keys, got {} and {}", piece.queries.size(),
           piece.keys.size());
  }
}

std::unique_ptr<RingAttention> make_ring_attention(at::Device device) {
  return device.is_cpu() ? make_host_ring_attention() : make_plain_ring_attention();
}

}  // namespace optimus
