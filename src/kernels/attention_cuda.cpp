// Dropout factors and masks of attention scores on a GPU, for the plain implementation and for kernels that
// accept a mask. Empty in builds without CUDA.
#ifdef OPTIMUS_CUDA
#include <algorithm>

#include "kernels/attention.h"
#include "kernels/cuda_tensors.h"

namespace optimus {
namespace {

// Fills `scores`, [heads, queries, keys], with dropout factors or a mask. key_of(i) returns the key of head
// i.
template <typename KeyOf>
void fill_scores(const AttentionDropout& dropout, cuda::DropoutFactorsTask task, at::Tensor& scores,
                 const KeyOf& key_of) {
  const Launch launch(scores);
  task.element = element_of(scores), task.rate = dropout.rate, task.max_positions = dropout.max_positions;
  task.num_queries = scores.size(1), task.num_keys = scores.size(2);
  for (std::int64_t head = 0; head < scores.size(0); head += cuda::kMaxDropoutKeys) {
    task.num_heads = std::min<std::int64_t>(cuda::kMaxDropoutKeys, scores.size(0) - head);
    task.factors = flat_data(scores.narrow(0, head, task.num_heads), scores.scalar_type());
    cuda::DropoutKeys keys;
    for (std::int64_t i = 0; i < task.num_heads; ++i) keys.of[i] = key_of(head + i).value;
    launch(cuda::dropout_factors, task, keys);
  }
}

}  // namespace

void fill_dropout_factors(const AttentionDropout& dropout, RandomKey key, Span queries, Span keys,
                          at::Tensor& factors) {
  cuda::DropoutFactorsTask task{.first_query = queries.begin, .first_key = keys.begin};
  fill_scores(dropout, task, factors, [&](std::int64_t head) {
    return key.derive(static_cast<std::uint64_t>(dropout.first_head + head));
  });
}

void fill_dropout_mask(const AttentionDropout& dropout, bool is_causal, Span sequences, Span heads,
                       at::Tensor& mask) {
  cuda::DropoutFactorsTask task{.is_mask = true, .is_causal = is_causal};
  at::Tensor flat = mask.flatten(0, 1);
  fill_scores(dropout, task, flat, [&](std::int64_t row) {
    const std::int64_t sample =
        dropout.samples[static_cast<std::size_t>(sequences.begin + row / heads.size())];
    return dropout.key.derive(static_cast<std::uint64_t>(sample))
        .derive(static_cast<std::uint64_t>(dropout.first_head + heads.begin + row % heads.size()));
  });
}

}  // namespace optimus
#endif
