// Attention under context parallelism. A device has the queries of some positions of every sequence, and
// processes the keys and values of all positions, one ring step at a time. After the last ring step, the
// result is attention over whole sequences (attention.h).
//
//   for every part: forward(task of (own, that part), q, its k, its v, out, logsumexp)
//   for every part: backward(the same task, dout, q, its k, its v, out, logsumexp, dq, its dk, its dv)
//
// This code does not communicate; the caller moves the keys between devices. Rows of a sequence are
// contiguous and in the order of their positions: q [sequences * own_length, heads, head_dim], k [sequences *
// key_length, kv_heads, head_dim]. There are two implementations: "plain" uses ATen on any device and is the
// reference in tests, "host" is the blocked CPU kernel of attention.h. Read next: ring_attention.cpp,
// ring_attention_plain.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/box.h"
#include "kernels/attention.h"

namespace optimus {

// Positions of a sequence that belong to one context part, in order. There are at most two spans, which
// schedule/share.h assigns.
using ContextPositions = std::vector<Span>;

// One rectangle of scores between rows of queries and rows of keys of one sequence. Rows are relative to the
// context part's rows of that sequence.
struct RingPiece {
  std::int64_t sequence = 0;
  Span queries, keys;  // rows in this device's part, rows in the part that owns the keys; not empty
  // If true, queries and keys have the same positions, and query i attends to keys 0 .. i. If false, all
  // queries attend to all keys.
  bool is_causal = false;
  // Positions of the first query and the first key in the sequence, for dropout.
  std::int64_t first_query = 0, first_key = 0;
  bool operator==(const RingPiece&) const = default;
};

// Returns the pieces of (queries at own_positions) x (keys at peer_positions) that are computed. They cover
// only scores inside segments and, with `is_causal`, only keys that are not later than the query. If
// `segments` is empty, each sequence is one segment of `length` positions. The spans of the two context parts
// must be identical or disjoint. Pieces of one segment are consecutive, and pieces with the same queries are
// adjacent.
std::vector<RingPiece> ring_pieces(const ContextPositions& own_positions,
                                   const ContextPositions& peer_positions, std::int64_t sequences,
                                   std::int64_t length, bool is_causal,
                                   const std::vector<AttentionSegment>& segments);

struct RingTask {
  // `length` is the length of whole sequences. The pieces specify which scores are causal.
  AttentionShape shape{};
  std::int64_t own_length = 0, key_length = 0;  // rows per sequence in q and out, and in k and v
  std::vector<RingPiece> pieces{};              // in the order of ring_pieces
  // Dropout is indexed by positions in the sequence, so that the split does not change which elements are
  // dropped.
  AttentionDropout dropout{};
};

// As in attention.h, the elements of a head are contiguous. Buffers may have more rows than sequences *
// length; the additional rows are neither read nor written. out, dq, dk and dv have the wide type: fp32, or
// fp64 with fp64 elements. logsumexp is [sequences, heads, own_length], contiguous, of the wide type. Output
// buffers must not alias any other buffer.
class RingAttention {
 public:
  virtual ~RingAttention() = default;
  // Adds the contribution of these keys, so that `out` (in the wide type) and `logsumexp` cover all keys so
  // far. Before the first call, `out` must be zero and `logsumexp` must be -infinity. A query that no piece
  // contains keeps these values.
  virtual void forward(const RingTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       at::Tensor& out, at::Tensor& logsumexp) const = 0;
  // Adds the contribution of these keys to dq, and the contribution of this device's queries to dk and dv,
  // all in the wide type. dout and out have the element type. out and logsumexp are the results of the last
  // ring step.
  virtual void backward(const RingTask& task, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                        const at::Tensor& logsumexp, at::Tensor& dq, at::Tensor& dk,
                        at::Tensor& dv) const = 0;
};

// Maximum number of bytes of scores that the plain implementation computes at a time.
constexpr std::int64_t kMaxScoreBytes = 64 << 20;
std::unique_ptr<RingAttention> make_plain_ring_attention(std::int64_t max_score_bytes = kMaxScoreBytes);
std::unique_ptr<RingAttention> make_host_ring_attention();
// Returns the fastest implementation for a device.
std::unique_ptr<RingAttention> make_ring_attention(at::Device device);

// Called by implementations. Fails if pieces are outside their context parts, context parts are outside their
// tensors, or the dropout has too few samples for the sequences.
void check_ring_task(const RingTask& task, const at::Tensor& q, const at::Tensor& k);

}  // namespace optimus
