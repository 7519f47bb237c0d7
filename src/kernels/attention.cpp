// Code shared by the attention implementations. attention_plain.cpp shows what they compute.
#include "kernels/attention.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace optimus {

void check_attention(const AttentionShape& shape, const AttentionDropout& dropout) {
  ensure(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
         "{} query heads cannot be divided evenly among {} key/value heads", shape.heads, shape.kv_heads);
  ensure(dropout.rate == 0 || (static_cast<std::int64_t>(dropout.samples.size()) >= shape.sequences &&
                               dropout.max_positions >= shape.length),
         "attention dropout covers {} samples of {} positions, but there are {} sequences of length {}",
         dropout.samples.size(), dropout.max_positions, shape.sequences, shape.length);
}

std::vector<AttentionSegment> segments_of(const AttentionTask& task) {
  const AttentionShape& shape = task.shape;
  check_attention(shape, task.dropout);
  for (const AttentionSegment& segment : task.segments)
    ensure(segment.sequence >= 0 && segment.sequence < shape.sequences && segment.begin >= 0 &&
               segment.begin <= segment.end && segment.end <= shape.length,
           "segment {}..{} of sequence {} is outside the range of {} sequences of length {}", segment.begin,
           segment.end, segment.sequence, shape.sequences, shape.length);
  if (!task.segments.empty()) return task.segments;
  std::vector<AttentionSegment> whole_sequences;
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence)
    whole_sequences.push_back({.sequence = sequence, .begin = 0, .end = shape.length});
  return whole_sequences;
}

void zero_gaps(const AttentionTask& task, at::Tensor& tensor) {
  std::vector<AttentionSegment> segments = segments_of(task);
  std::sort(segments.begin(), segments.end(), [](const AttentionSegment& a, const AttentionSegment& b) {
    return std::pair(a.sequence, a.begin) < std::pair(b.sequence, b.begin);
  });
  segments.push_back({.sequence = task.shape.sequences, .begin = 0, .end = 0});
  std::int64_t next_row = 0;  // all rows before it are covered or zeroed
  for (const AttentionSegment& segment : segments) {
    const std::int64_t begin = segment.sequence * task.shape.length + segment.begin;
    ensure(begin >= next_row, "segments of sequence {} overlap at position {}", segment.sequence,
           segment.begin);
    if (begin > next_row) tensor.narrow(0, next_row, begin - next_row).zero_();
    next_row = begin + segment.end - segment.begin;
  }
}

at::Tensor rows_of(const AttentionShape& shape, const AttentionSegment& segment, const at::Tensor& tensor) {
  return tensor.narrow(0, segment.sequence * shape.length + segment.begin, segment.end - segment.begin);
}

// The host kernel is faster than ATen's (bench_kernels), except on CPUs with hardware support for bf16
// matrices.
std::unique_ptr<Attention> make_attention(at::Device device, at::ScalarType type) {
#ifdef __AMX_BF16__
  if (type == at::kBFloat16) return make_fused_attention();
#endif
  (void)type;
  return device.is_cpu() ? make_host_attention() : make_fused_attention();
}

}  // namespace optimus
