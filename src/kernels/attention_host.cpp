// Attention on CPUs. Processes blocks of queries against blocks of keys, with dropout masks that depend only
// on (sample, head, query, key). Computes attention over whole sequences, or one ring step. Read next:
// host_attention.h.
#include <numeric>

#include "kernels/attention.h"
#include "kernels/host_attention.h"
#include "kernels/ring_attention.h"

namespace optimus {
namespace {

// Expresses attention over whole sequences as a ring with one part, in which every segment is one piece.
RingTask single_part_ring(const AttentionTask& task) {
  RingTask ring{.shape = task.shape,
                .own_length = task.shape.length,
                .key_length = task.shape.length,
                .pieces = {},
                .dropout = task.dropout};
  for (const AttentionSegment& segment : segments_of(task))
    if (segment.begin < segment.end)
      ring.pieces.push_back({.sequence = segment.sequence,
                             .queries = {segment.begin, segment.end},
                             .keys = {segment.begin, segment.end},
                             .is_causal = task.shape.is_causal,
                             .first_query = segment.begin,
                             .first_key = segment.begin});
  return ring;
}

class HostAttention final : public Attention {
 public:
  void forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               at::Tensor& out, at::Tensor& logsumexp) const override {
    zero_gaps(task, out);
    if (!task.segments.empty()) logsumexp.zero_();
    const AttentionTensors tensors{out, q, k, v, out, logsumexp, q, k, v};
    host_attention_forward(single_part_ring(task), tensors, OutputMode::written);
  }

  void backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, at::Tensor& dq,
                at::Tensor& dk, at::Tensor& dv) const override {
    zero_gaps(task, dq), zero_gaps(task, dk), zero_gaps(task, dv);
    const AttentionTensors tensors{dout, q, k, v, out, logsumexp, dq, dk, dv};
    host_attention_backward(single_part_ring(task), tensors, OutputMode::written);
  }
};

class HostRingAttention final : public RingAttention {
 public:
  void forward(const RingTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               at::Tensor& out, at::Tensor& logsumexp) const override {
    check_ring_task(task, q, k);
    const AttentionTensors tensors{out, q, k, v, out, logsumexp, q, k, v};
    host_attention_forward(task, tensors, OutputMode::added);
  }

  void backward(const RingTask& task, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, at::Tensor& dq,
                at::Tensor& dk, at::Tensor& dv) const override {
    check_ring_task(task, q, k);
    const AttentionTensors tensors{dout, q, k, v, out, logsumexp, dq, dk, dv};
    host_attention_backward(task, tensors, OutputMode::added);
  }
};

// Divides pieces into ranges. A new range starts wherever `is_same_range(range so far, next)` is false.
template <typename Predicate>
std::vector<Span> ranges_of(const std::vector<RingPiece>& pieces, Predicate is_same_range) {
  std::vector<Span> ranges;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(pieces.size()); ++i)
    if (!ranges.empty() && is_same_range(ranges.back(), pieces[static_cast<std::size_t>(i)]))
      ++ranges.back().end;
    else
      ranges.push_back({i, i + 1});
  return ranges;
}

}  // namespace

std::vector<Span> pieces_by_queries(const std::vector<RingPiece>& pieces) {
  return ranges_of(pieces, [&](Span range, const RingPiece& next) {
    const RingPiece& first = pieces[static_cast<std::size_t>(range.begin)];
    return first.sequence == next.sequence && first.queries == next.queries;
  });
}

std::vector<Span> independent_ranges(const std::vector<RingPiece>& pieces) {
  return ranges_of(pieces, [&](Span range, const RingPiece& next) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const RingPiece& piece = pieces[static_cast<std::size_t>(i)];
      if (piece.sequence == next.sequence && (piece.queries == next.queries || piece.keys == next.keys))
        return true;
    }
    return false;
  });
}

std::int64_t num_scores(const RingPiece& piece) {
  const std::int64_t num_pairs = piece.queries.size() * piece.keys.size();
  return piece.is_causal ? num_pairs / 2 + 1 : num_pairs;
}

void parallel_for_by_cost(const std::vector<std::int64_t>& costs, const std::function<void(Span)>& body) {
  const std::int64_t total = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  const std::int64_t num_ranges =
      std::min<std::int64_t>(at::get_num_threads(), static_cast<std::int64_t>(costs.size()));
  std::vector<Span> ranges;
  std::int64_t index = 0, cost_before = 0;
  for (std::int64_t range = 0; range < num_ranges; ++range) {
    const std::int64_t begin = index, cost_limit = total / num_ranges * (range + 1);
    // An item belongs to the range that contains its middle.
    while (index < static_cast<std::int64_t>(costs.size()) &&
           (range + 1 == num_ranges || cost_before + costs[static_cast<std::size_t>(index)] / 2 < cost_limit))
      cost_before += costs[static_cast<std::size_t>(index++)];
    ranges.push_back({begin, index});
  }
  at::parallel_for(0, num_ranges, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t range = first; range < last; ++range) body(ranges[static_cast<std::size_t>(range)]);
  });
}

std::unique_ptr<Attention> make_host_attention() { return std::make_unique<HostAttention>(); }
std::unique_ptr<RingAttention> make_host_ring_attention() { return std::make_unique<HostRingAttention>(); }

}  // namespace optimus
