// Attention of context parallelism: a device has the queries of some positions of every sequence and meets, hop by hop, the
// keys and values of all positions. What it has after the last hop is attention over whole sequences (attention.h).
//
//   for every part: forward(task of (own, that part), q, its k, its v, out, logsumexp)
//   for every part: backward(the same task, dout, q, its k, its v, out, logsumexp, dq, its dk, its dv)
//
// It moves nothing between devices: who has which keys when is the caller's. Rows of a sequence lie one behind the other in the
// order of their positions: q [sequences * own_length, heads, head_dim], k [sequences * their_length, kv_heads, head_dim].
// Two implementations: plain (ATen, any device: the twin that tests trust) and host (blocks, the ones of attention.h's host
// kernel). Read next: ring_attention.cpp, ring_attention_plain.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/box.h"
#include "kernels/attention.h"

namespace optimus {

// Positions of a sequence that one context part has, in order: at most two spans (schedule/share.h says which).
using ContextPositions = std::vector<Span>;

// One rectangle of scores: rows of one sequence's queries against rows of its keys, both counted in the part's own rows of that
// sequence.
struct RingPiece {
  std::int64_t sequence = 0;
  Span queries, keys;      // rows in the own part, rows in the part that the keys come from; neither is empty
  bool is_causal = false;  // the same positions on both sides, query i sees keys 0 .. i; else all see all
  std::int64_t first_query = 0, first_key = 0;  // their positions in the sequence, for dropout's numbers
  bool operator==(const RingPiece&) const = default;
};

// What of (own queries) x (their keys) counts: inside segments only (none: every sequence is one of `length` positions), and
// with is_causal only keys that are not later than the query. Spans of the two parts are the same or have nothing in common.
// Pieces of one segment follow each other, those with the same queries next to each other.
std::vector<RingPiece> ring_pieces(const ContextPositions& own, const ContextPositions& theirs,
                                   std::int64_t sequences, std::int64_t length, bool is_causal,
                                   const std::vector<AttentionSegment>& segments);

struct RingTask {
  AttentionShape shape{};                         // length: of the whole sequence; is_causal is the pieces'
  std::int64_t own_length = 0, their_length = 0;  // rows of a sequence in q and out, in k and v
  std::vector<RingPiece> pieces{};                // in the order that ring_pieces gives them
  AttentionDropout
      dropout{};  // numbered by positions in the sequence, so the split does not change what is dropped
};

// Strides as in attention.h: elements of a head are neighbours. Buffers may have more rows than sequences * length; those are
// neither read nor written. out, dq, dk, dv of the wide type: fp32, or fp64 with fp64 elements. logsumexp
// [sequences, heads, own_length], contiguous, wide. No buffer that is written may lie where another one does.
class RingAttention {
 public:
  virtual ~RingAttention() = default;
  // Adds these keys' part: out (wide) and logsumexp become those of all keys so far. Before the first call: out zero,
  // logsumexp -infinity; a query that no piece ever names keeps that.
  virtual void forward(const RingTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       at::Tensor& out, at::Tensor& logsumexp) const = 0;
  // Adds these keys' part of dq, and the own queries' part of dk and dv (all wide). dout and out are of the element type; out
  // and logsumexp are those after the last hop.
  virtual void backward(const RingTask& task, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                        const at::Tensor& logsumexp, at::Tensor& dq, at::Tensor& dk,
                        at::Tensor& dv) const = 0;
};

constexpr std::int64_t kMaxScoreBytes = 64 << 20;  // that the plain one has of scores at a time
std::unique_ptr<RingAttention> make_plain_ring_attention(std::int64_t max_score_bytes = kMaxScoreBytes);
std::unique_ptr<RingAttention> make_host_ring_attention();
// The fastest there is for a device.
std::unique_ptr<RingAttention> make_ring_attention(at::Device device);

// For implementations: aborts where pieces lie outside their parts, parts outside their tensors, or sequences outside the
// dropout's samples.
void check_ring_task(const RingTask& task, const at::Tensor& q, const at::Tensor& k);

}  // namespace optimus
