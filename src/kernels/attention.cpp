// Shared by the attention implementations. See attention_plain.cpp for the definition of what they compute.
#include "kernels/attention.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace optimus {

void check_attention(const AttentionShape& shape, const AttentionDropout& dropout) {
  ensure(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
         "{} heads cannot be divided into groups of {} key/value heads", shape.heads, shape.kv_heads);
  ensure(dropout.rate == 0 || static_cast<std::int64_t>(dropout.samples.size()) >= shape.sequences,
         "attention dropout covers {} samples, but there are {} sequences", dropout.samples.size(),
         shape.sequences);
}

std::vector<AttentionSegment> segments_of(const AttentionTask& task) {
  const AttentionShape& shape = task.shape;
  check_attention(shape, task.dropout);
  for (const AttentionSegment& segment : task.segments)
    ensure(segment.sequence >= 0 && segment.sequence < shape.sequences && segment.begin >= 0 &&
               segment.begin <= segment.end && segment.end <= shape.length,
           "segment {}..{} of sequence {} is outside {} sequences of {}", segment.begin, segment.end,
           segment.sequence, shape.sequences, shape.length);
  if (!task.segments.empty()) return task.segments;
  std::vector<AttentionSegment> whole;
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence)
    whole.push_back({.sequence = sequence, .begin = 0, .end = shape.length});
  return whole;
}

void zero_gaps(const AttentionTask& task, at::Tensor& tensor) {
  std::vector<AttentionSegment> segments = segments_of(task);
  std::sort(segments.begin(), segments.end(), [](const AttentionSegment& a, const AttentionSegment& b) {
    return std::pair(a.sequence, a.begin) < std::pair(b.sequence, b.begin);
  });
  segments.push_back({.sequence = task.shape.sequences, .begin = 0, .end = 0});
  std::int64_t done = 0;  // rows before this one are covered or zeroed
  for (const AttentionSegment& segment : segments) {
    const std::int64_t begin = segment.sequence * task.shape.length + segment.begin;
    ensure(begin >= done, "segments of sequence {} overlap at {}", segment.sequence, segment.begin);
    if (begin > done) tensor.narrow(0, done, begin - done).zero_();
    done = begin + segment.end - segment.begin;
  }
}

at::Tensor rows_of(const AttentionShape& shape, const AttentionSegment& segment, const at::Tensor& tensor) {
  return tensor.narrow(0, segment.sequence * shape.length + segment.begin, segment.end - segment.begin);
}

// Our host kernel is faster than ATen's on CPUs (bench_kernels), except on CPUs with hardware support for
// bf16 matrices.
std::unique_ptr<Attention> make_attention(at::Device device, at::ScalarType type) {
#ifdef __AMX_BF16__
  if (type == at::kBFloat16) return make_fused_attention();
#endif
  (void)type;
  return device.is_cpu() ? make_host_attention() : make_fused_attention();
}

}  // namespace optimus
