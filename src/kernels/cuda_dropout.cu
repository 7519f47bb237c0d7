// Keyed dropout of attention scores on CUDA. Computes either the factors that dropout_factors
// (kernels/attention.h) returns, or a mask of ones and zeros.
#include <cmath>

#include "kernels/cuda_math.cuh"
#include "kernels/cuda_random.cuh"

namespace optimus::cuda {
namespace {

struct ScoreRange {
  std::int64_t first_query, first_key, num_queries, num_keys, max_positions;
  bool is_causal;
};

// A thread handles the scores of one block of four random numbers. The first and the last block of a row may
// have fewer scores.
template <typename T, bool kIsAligned>
__global__ void __launch_bounds__(256)
    factors_kernel(T* factors, const ScoreRange at, const __grid_constant__ DropoutKeys keys,
                   std::uint32_t threshold, T retained_value) {
  const std::int64_t query = blockIdx.x, head = blockIdx.z;
  const std::int64_t first_element = (at.first_query + query) * at.max_positions + at.first_key;
  const std::int64_t block =
      first_element / 4 + static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (block * 4 >= first_element + at.num_keys) return;
  const std::int64_t key = block * 4 - first_element;
  const bool is_visible = !at.is_causal || at.first_key + key <= at.first_query + query;
  const Words words = is_visible ? random_block(keys.of[head], static_cast<std::uint64_t>(block)) : Words{};
  Pack<T, 4> pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) pack.values[i] = (words.at[i] >> 8) < threshold ? T(0) : retained_value;
  T* const row = factors + (head * at.num_queries + query) * at.num_keys;
  if constexpr (kIsAligned) {
    *reinterpret_cast<Pack<T, 4>*>(row + key) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (key + i >= 0 && key + i < at.num_keys) row[key + i] = pack.values[i];
  }
}

template <typename T>
void launch_factors(const Queue& queue, const DropoutFactorsTask& task, const DropoutKeys& keys,
                    T retained_value) {
  constexpr int kThreads = 256;
  const bool is_block_aligned = task.max_positions % 4 == 0 && task.first_key % 4 == 0;
  const bool is_aligned = is_block_aligned && task.num_keys % 4 == 0;
  // blocks of random numbers per row
  const std::int64_t blocks = (task.num_keys + (is_block_aligned ? 3 : 6)) / 4;
  const dim3 grid(static_cast<unsigned>(task.num_queries),
                  static_cast<unsigned>((blocks + kThreads - 1) / kThreads),
                  static_cast<unsigned>(task.num_heads));
  const ScoreRange at{task.first_query, task.first_key,     task.num_queries,
                      task.num_keys,    task.max_positions, task.is_causal};
  const auto kernel = is_aligned ? factors_kernel<T, true> : factors_kernel<T, false>;
  kernel<<<grid, kThreads, 0, queue.stream>>>(static_cast<T*>(task.factors), at, keys,
                                              static_cast<std::uint32_t>(std::ceil(task.rate * 0x1p24)),
                                              retained_value);
}

}  // namespace

void dropout_factors(const Queue& queue, const DropoutFactorsTask& task, const DropoutKeys& keys) {
  if (task.num_heads == 0 || task.num_queries == 0 || task.num_keys == 0) return;
  const double retained_value = task.is_mask ? 1 : 1 / (1 - task.rate);
  switch (task.element) {
    case Element::fp64:
      return launch_factors<double>(queue, task, keys, retained_value);
    case Element::fp32:
      return launch_factors<float>(queue, task, keys, static_cast<float>(retained_value));
    case Element::bf16:
      return launch_factors<__nv_bfloat16>(queue, task, keys,
                                           __float2bfloat16(static_cast<float>(retained_value)));
    case Element::fp16:
      return launch_factors<__half>(queue, task, keys, __float2half(static_cast<float>(retained_value)));
  }
}

}  // namespace optimus::cuda
