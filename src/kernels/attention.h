// Attention: out = softmax(q kᵀ * scale) v, and its gradients, with one call per micro-batch.
//
// Three implementations that agree up to rounding: fused (ATen's flash and cuDNN kernels, and this project's
// CUDA kernels for dropout), plain (score
// matrices by ATen, for one segment and all its heads at a time: the reference in tests, and used on CUDA
// for fp32, and for dropout that this project's CUDA kernels do not support), and host (this project's
// blocked CPU kernel, with keyed dropout). make_attention selects one for a device.
//
//   q, out, dq: [sequences * length, heads, head_dim]; k, v, dk, dv: [.., kv_heads, head_dim]. The elements
//   of a head are contiguous; the other strides are arbitrary: q, k, v are usually column ranges of one
//   buffer. heads is a multiple of kv_heads; heads h * group .. (h + 1) * group of q use head h of k and v.
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

// Positions [begin, end) of a sequence that attend only to each other: a document, or the part of a padded
// sequence without padding. Segments do not overlap.
struct AttentionSegment {
  std::int64_t sequence = 0, begin = 0, end = 0;
};

// Which attention probabilities are dropped, by sample, head and positions in the sequence:
// attention_dropout.h. The rate is rounded to a multiple of 1 / 256.
struct AttentionDropout {
  double rate = 0;
  RandomKey key{};                      // derived from (seed, step, layer, site)
  std::vector<std::int64_t> samples{};  // global sample index of each sequence
  // Index of the device's first head among all heads of the model.
  std::int64_t first_head = 0;
  // key.derive(sample) of each sequence, int64, in the memory of a GPU; computed and copied there by each
  // call if undefined. A recorded call reads the keys again when it is repeated.
  at::Tensor sample_keys{};
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
// The fastest implementation for a device and element type.
std::unique_ptr<Attention> make_attention(at::Device device, at::ScalarType type);

// For implementations: aborts if the heads cannot be grouped, or if the dropout has fewer samples than
// there are sequences.
void check_attention(const AttentionShape& shape, const AttentionDropout& dropout);
// The task's segments, or one per sequence if it has none. Checks the segments and the samples of the
// dropout.
std::vector<AttentionSegment> segments_of(const AttentionTask& task);
// Zeroes the rows of a [sequences * length, ..] tensor that no segment covers.
void zero_gaps(const AttentionTask& task, at::Tensor& tensor);
// Returns the segment's rows of a [sequences * length, heads, head_dim] tensor.
at::Tensor rows_of(const AttentionShape& shape, const AttentionSegment& segment, const at::Tensor& tensor);
// Returns the dropout factor, 0 or dropout_scale(), of each score of a sequence's heads, [heads, queries,
// keys], with the type and device of `like`.
at::Tensor dropout_factors(const AttentionDropout& dropout, std::int64_t sequence, std::int64_t heads,
                           Span queries, Span keys, const at::Tensor& like);
#ifdef OPTIMUS_CUDA
// Fills `factors` with the same on a GPU. `key` is the sample's key, dropout.key.derive(sample).
void fill_dropout_factors(const AttentionDropout& dropout, RandomKey key, Span queries, Span keys,
                          at::Tensor& factors);
#endif

}  // namespace optimus
