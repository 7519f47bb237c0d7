// Factors of keyed dropout for attention's scores on CUDA: those of dropout_factors (kernels/attention.h).
#include <cmath>

#include "kernels/cuda_math.cuh"
#include "kernels/cuda_random.cuh"

namespace optimus::cuda {
namespace {

struct ScorePlaces {
  std::int64_t first_query, first_key, num_queries, num_keys, max_positions;
};

// A thread has the scores of one block of four random numbers, of which a row's first and last may have fewer.
template <typename T>
__global__ void __launch_bounds__(256)
    factors_kernel(T* factors, const ScorePlaces at, const __grid_constant__ DropoutKeys keys,
                   std::uint32_t threshold, T scale) {
  const std::int64_t query = blockIdx.x, head = blockIdx.z;
  const std::int64_t first = (at.first_query + query) * at.max_positions + at.first_key;
  const std::int64_t block = first / 4 + static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (block * 4 >= first + at.num_keys) return;
  const Words words = random_block(keys.of[head], static_cast<std::uint64_t>(block));
  T* const row = factors + (head * at.num_queries + query) * at.num_keys;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t key = block * 4 + i - first;
    if (key >= 0 && key < at.num_keys) row[key] = (words.at[i] >> 8) < threshold ? T(0) : scale;
  }
}

template <typename T>
void launch_factors(const Queue& queue, const FactorsTask& task, const DropoutKeys& keys) {
  constexpr int kThreads = 256;
  const std::int64_t blocks = task.num_keys / 4 + 2;  // of four numbers, in a row
  const dim3 grid(static_cast<unsigned>(task.num_queries),
                  static_cast<unsigned>((blocks + kThreads - 1) / kThreads),
                  static_cast<unsigned>(task.num_heads));
  const ScorePlaces at{task.first_query, task.first_key, task.num_queries, task.num_keys, task.max_positions};
  factors_kernel<T><<<grid, kThreads, 0, queue.stream>>>(
      static_cast<T*>(task.factors), at, keys, static_cast<std::uint32_t>(std::ceil(task.rate * 0x1p24)),
      static_cast<T>(1 / (1 - task.rate)));
}

}  // namespace

void dropout_factors(const Queue& queue, const FactorsTask& task, const DropoutKeys& keys) {
  if (task.num_heads == 0 || task.num_queries == 0 || task.num_keys == 0) return;
  if (task.element == Element::fp64)
    launch_factors<double>(queue, task, keys);
  else
    launch_factors<float>(queue, task, keys);
}

}  // namespace optimus::cuda
