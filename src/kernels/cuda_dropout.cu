// Keyed dropout of attention scores on CUDA: the factors of dropout_factors (kernels/attention.h).
#include "kernels/attention_dropout.h"
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

// A warp computes a tile of 16 queries x 32 keys, a thread the 16 scores of one lane.
template <typename T>
__global__ void __launch_bounds__(256)
    factors_kernel(const DropoutFactorsTask task, const __grid_constant__ DropoutKeys keys,
                   T retained_value) {
  const std::int64_t head = blockIdx.z;
  const std::int64_t tile_row = task.first_query / kDropoutTileQueries + blockIdx.x;
  const std::int64_t tile_column = task.first_key / kDropoutTileKeys + blockIdx.y * 8 + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (tile_column * kDropoutTileKeys >= task.first_key + task.num_keys) return;
  const DropoutWords words =
      dropout_words(keys.of[head], static_cast<std::uint32_t>(tile_row),
                    static_cast<std::uint32_t>(tile_column), static_cast<std::uint32_t>(lane));
  T* const factors = static_cast<T*>(task.factors) + head * task.num_queries * task.num_keys;
#pragma unroll
  for (int word = 0; word < 4; ++word)
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      // The inverse of dropout_place().
      const std::int64_t query = tile_row * kDropoutTileQueries + lane / 4 + word % 2 * 8 - task.first_query;
      const std::int64_t key =
          tile_column * kDropoutTileKeys + lane % 4 * 2 + word / 2 + 8 * byte - task.first_key;
      if (query < 0 || query >= task.num_queries || key < 0 || key >= task.num_keys) continue;
      const bool is_retained = (words.at[word] >> (8 * byte) & 255) >= task.threshold;
      factors[query * task.num_keys + key] = is_retained ? retained_value : narrow<T>(0);
    }
}

}  // namespace

void dropout_factors(const Queue& queue, const DropoutFactorsTask& task, const DropoutKeys& keys) {
  if (task.num_heads == 0 || task.num_queries == 0 || task.num_keys == 0) return;
  const auto num_tiles = [](std::int64_t first, std::int64_t count, std::int64_t size) {
    return (first + count + size - 1) / size - first / size;
  };
  const std::int64_t columns = num_tiles(task.first_key, task.num_keys, kDropoutTileKeys);
  const dim3 grid(static_cast<unsigned>(num_tiles(task.first_query, task.num_queries, kDropoutTileQueries)),
                  static_cast<unsigned>((columns + 7) / 8), static_cast<unsigned>(task.num_heads));
  with_element(task.element, [&](auto zero) {
    using T = decltype(zero);
    factors_kernel<T>
        <<<grid, 256, 0, queue.stream>>>(task, keys, T(static_cast<Wide<T>>(dropout_scale(task.threshold))));
  });
}

}  // namespace optimus::cuda
