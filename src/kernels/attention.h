// Attention: out = softmax(q kᵀ * scale) v, and its gradients, with one call per micro-batch.
//
// There are three implementations, whose results agree up to rounding. "fused" calls ATen's flash and cuDNN
// kernels. "plain" lets ATen compute the score matrices of all heads, one segment at a time. It is the
// reference in tests, and it is used on CUDA for fp32 and for dropout where cuDNN accepts no mask. "host" is
// this project's blocked CPU kernel with keyed dropout. make_attention selects one of them for a device.
//
//   q, out, dq: [sequences * length, heads, head_dim]; k, v, dk, dv: [.., kv_heads, head_dim]. The elements
//   of a head are contiguous. The other strides are arbitrary, because q, k and v are usually column ranges
//   of one buffer. heads is a multiple of kv_heads; heads h * group .. (h + 1) * group of q use head h of k
//   and v.
//   logsumexp: [sequences, heads, length], fp32, or fp64 with fp64 elements; forward writes it, backward
//   reads it.
//
// dq, dk, dv may alias q, k, v. Positions outside all segments have zero output and zero gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/random.h"

namespace optimus {

struct AttentionShape {
  std::int64_t sequences = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool is_causal = true;
  double scale = 1;  // factor of the scores, usually 1 / sqrt(head_dim)
};

// Positions [begin, end) of a sequence that attend only to each other, such as a document, or the part of a
// padded sequence before its padding. Segments do not overlap.
struct AttentionSegment {
  std::int64_t sequence = 0, begin = 0, end = 0;
};

// The attention probability of key j for query i in a head is dropped if the random number with index i *
// max_positions + j of key.derive(global sample).derive(head) is below `rate`; otherwise it is scaled by 1 /
// (1 - rate). i and j are positions in the sequence.
struct AttentionDropout {
  double rate = 0;
  RandomKey key{};                      // derived from (seed, step, layer, site)
  std::vector<std::int64_t> samples{};  // global sample index of each sequence
  // Index of the device's first head among all heads of the model.
  std::int64_t first_head = 0;
  std::int64_t max_positions = 0;  // maximum of the model, not of this batch
};

struct AttentionTask {
  AttentionShape shape{};
  std::vector<AttentionSegment> segments{};  // empty if each sequence is one segment
  AttentionDropout dropout{};
};

class Attention {
 public:
  virtual ~Attention() = default;
  virtual void forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, at::Tensor& out, at::Tensor& logsumexp) const = 0;
  virtual void backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                        const at::Tensor& logsumexp, at::Tensor& dq, at::Tensor& dk,
                        at::Tensor& dv) const = 0;
};

std::unique_ptr<Attention> make_plain_attention();
std::unique_ptr<Attention> make_fused_attention();
std::unique_ptr<Attention> make_host_attention();
// Returns the fastest implementation for a device and element type.
std::unique_ptr<Attention> make_attention(at::Device device, at::ScalarType type);

// Called by implementations. Fails if the query heads cannot be divided evenly among the key/value heads, or
// if the dropout has fewer samples or positions than the sequences need.
void check_attention(const AttentionShape& shape, const AttentionDropout& dropout);
// Returns the task's segments, or one per sequence if the task has none. Checks the segments and the
// dropout's samples.
std::vector<AttentionSegment> segments_of(const AttentionTask& task);
// Zeroes the rows of a [sequences * length, ..] tensor that no segment covers.
void zero_gaps(const AttentionTask& task, at::Tensor& tensor);
// Returns the segment's rows of a [sequences * length, heads, head_dim] tensor.
at::Tensor rows_of(const AttentionShape& shape, const AttentionSegment& segment, const at::Tensor& tensor);
// Returns the dropout factor, 0 or 1 / (1 - rate), of each score of a sequence's heads, [heads, queries,
// keys], with the type and device of `like`.
at::Tensor dropout_factors(const AttentionDropout& dropout, std::int64_t sequence, std::int64_t heads,
                           Span queries, Span keys, const at::Tensor& like);
#ifdef OPTIMUS_CUDA
// Fills `factors` with the dropout factors on a GPU. `key` is the sample's key, dropout.key.derive(sample).
void fill_dropout_factors(const AttentionDropout& dropout, RandomKey key, Span queries, Span keys,
                          at::Tensor& factors);
// Fills `mask`, [sequences, heads, length, length] of any type, with 1 for retained and 0 for dropped scores.
// Covers all positions of the given sequences.
void fill_dropout_mask(const AttentionDropout& dropout, bool is_causal, Span sequences, Span heads,
                       at::Tensor& mask);
#endif

}  // namespace optimus
