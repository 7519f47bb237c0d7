// Residual, bias and keyed dropout on CUDA, in one pass. The random numbers are those of base/random.h.
// Element (position, column) of a sequence uses word e % 4 of block e / 4, where e = position * width +
// column.
#include <cmath>

#include "kernels/cuda_math.cuh"
#include "kernels/cuda_random.cuh"

namespace optimus::cuda {
namespace {

// Drops or scales kPack adjacent values. `element` is the index of the first; if kPack > 1, it is a multiple
// of kPack.
template <typename W, int kPack>
__device__ __forceinline__ void drop(W (&values)[kPack], std::uint64_t key, std::uint64_t element,
                                     std::uint32_t threshold, W scale) {
  if constexpr (kPack == 1) {
    const Words words = random_block(key, element / 4);
    const unsigned word_index = static_cast<unsigned>(element % 4);
    const std::uint32_t low = word_index & 1 ? words.at[1] : words.at[0],
                        high = word_index & 1 ? words.at[3] : words.at[2];
    values[0] = ((word_index & 2 ? high : low) >> 8) < threshold ? W(0) : values[0] * scale;
  } else {
    static_assert(kPack % 4 == 0);
#pragma unroll
    for (int i = 0; i < kPack; i += 4) {
      const Words words = random_block(key, element / 4 + i / 4);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        values[i + k] = (words.at[k] >> 8) < threshold ? W(0) : values[i + k] * scale;
    }
  }
}

template <typename T>
struct AddArguments {
  RowsOf<T> x, residual, y;
  const T* bias;
  std::int64_t num_rows, num_packs;
  unsigned sequence_length, first_row, first_position, jump_at, jump;
  std::uint32_t threshold;  // an element is dropped if its 24-bit random number is below the threshold
  Wide<T> scale;            // factor of retained elements
};

template <typename T, int kPack, bool kHasDropout>
__global__ void __launch_bounds__(256)
    add_kernel(const AddArguments<T> of, const __grid_constant__ DropoutKeys keys) {
  for_each_position(of.num_rows, of.num_packs, [&](std::int64_t row, std::int64_t column) {
    const std::int64_t at = column * kPack;
    Values<T, kPack> sum, addend;
    sum.load(of.x.row(row) + at);
    if (of.bias != nullptr) {
      addend.load(of.bias + at);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum.at[i] += addend.at[i];
    }
    if constexpr (kHasDropout) {
      const unsigned global_row = of.first_row + static_cast<unsigned>(row),
                     sequence = global_row / of.sequence_length,
                     sequence_row = global_row - sequence * of.sequence_length,
                     position =
                         of.first_position + sequence_row + (sequence_row >= of.jump_at ? of.jump : 0u);
      const std::uint64_t element = static_cast<std::uint64_t>(position) * (of.num_packs * kPack) + at;
      drop(sum.at, keys.of[sequence], element, of.threshold, of.scale);
    }
    if (of.residual.data != nullptr) {
      addend.load(of.residual.row(row) + at);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum.at[i] += addend.at[i];
    }
    sum.store(of.y.row(row) + at);
  });
}

}  // namespace

void add(const Queue& queue, const AddTask& task, const DropoutKeys& keys) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  const bool is_packed =
      all_have_packs(size_of(task.element), task.x, task.residual, task.y) && is_aligned(task.bias, 16);
  with_pack(task.element, is_packed, [&](auto zero, auto pack) {
    using T = decltype(zero);
    const AddArguments<T> of{RowsOf<T>(task.x),
                             RowsOf<T>(task.residual),
                             RowsOf<T>(task.y),
                             static_cast<const T*>(task.bias),
                             task.x.num_rows,
                             task.x.width / pack(),
                             static_cast<unsigned>(task.sequence_length),
                             static_cast<unsigned>(task.first_row),
                             static_cast<unsigned>(task.first_position),
                             static_cast<unsigned>(task.jump_at),
                             static_cast<unsigned>(task.jump),
                             static_cast<std::uint32_t>(std::ceil(task.rate * 0x1p24)),
                             static_cast<Wide<T>>(1 / (1 - task.rate))};
    const PlaneShape shape = plane_shape(of.num_rows, of.num_packs);
    if (task.rate > 0)
      add_kernel<T, pack(), true><<<shape.blocks, shape.threads, 0, queue.stream>>>(of, keys);
    else
      add_kernel<T, pack(), false><<<shape.blocks, shape.threads, 0, queue.stream>>>(of, keys);
  });
}

}  // namespace optimus::cuda
