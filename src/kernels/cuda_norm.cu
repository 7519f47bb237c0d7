// Layer norm and RMS norm on CUDA: a group of threads, a warp or a block, holds a row in registers, so that it is read once.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

constexpr int kHeld = 32;  // elements of a row that a thread holds at most

template <typename T>
struct NormArguments {
  RowsOf<T> x, y;
  const T *weight, *bias;
  RowsOf<Wide<T>> statistics;
  Wide<T> eps;
  std::int64_t num_rows;
  int num_packs;
  bool is_centred;
};

template <typename T, int kPack, int kGroup>
__global__ void __launch_bounds__(kGroup == 32 ? 128 : kGroup) norm_kernel(NormArguments<T> of) {
  using W = Wide<T>;
  using Sums = GroupSums<kGroup, W>;
  constexpr int kPacks = kHeld / kPack;
  __shared__ typename Sums::Room room;
  Sums sums(room);
  const int groups = blockDim.x / kGroup, lane = threadIdx.x % kGroup;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x / kGroup;
  if (row >= of.num_rows) return;  // a whole group
  const T* from = of.x.row(row);
  Values<T, kPack> held[kPacks];
  W sum = 0, none = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (const int c = p * kGroup + lane; c < of.num_packs)
      held[p].load(from + static_cast<std::int64_t>(c) * kPack);
  const W count = static_cast<W>(of.num_packs) * kPack;
  W mean = 0;
  if (of.is_centred) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (p * kGroup + lane < of.num_packs)
#pragma unroll
        for (int i = 0; i < kPack; ++i) sum += held[p].at[i];
    sums(sum, none);
    mean = sum / count;
  }
  W squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (p * kGroup + lane < of.num_packs)
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        held[p].at[i] -= mean;
        squares += held[p].at[i] * held[p].at[i];
      }
  none = 0;
  sums(squares, none);
  const W rstd = 1 / sqrt(squares / count + of.eps);
  if (lane == 0) {
    W* statistics = of.statistics.row(row);
    if (of.is_centred) statistics[0] = mean;
    statistics[of.is_centred ? 1 : 0] = rstd;
  }
  T* to = of.y.row(row);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = p * kGroup + lane;
    if (c >= of.num_packs) continue;
    Values<T, kPack> weight, bias;
    weight.load(of.weight + static_cast<std::int64_t>(c) * kPack);
    if (of.bias != nullptr) bias.load(of.bias + static_cast<std::int64_t>(c) * kPack);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      held[p].at[i] *= rstd * weight.at[i];
      if (of.bias != nullptr) held[p].at[i] += bias.at[i];
    }
    held[p].store(to + static_cast<std::int64_t>(c) * kPack);
  }
}

template <typename T, int kPack, int kGroup>
void launch(const Queue& queue, const NormArguments<T>& of) {
  constexpr int kThreads = kGroup == 32 ? 128 : kGroup;
  constexpr std::int64_t kRows = kThreads / kGroup;
  const auto blocks = static_cast<unsigned>((of.num_rows + kRows - 1) / kRows);
  norm_kernel<T, kPack, kGroup><<<blocks, kThreads, 0, queue.stream>>>(of);
}

}  // namespace

void norm(const Queue& queue, const NormTask& task) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  const bool is_packed = all_have_packs(size_of(task.element), task.x, task.y) &&
                         is_aligned(task.weight, 16) && is_aligned(task.bias, 16);
  with_pack(task.element, is_packed, [&](auto zero, auto pack) {
    using T = decltype(zero);
    const NormArguments<T> of{RowsOf<T>(task.x),
                              RowsOf<T>(task.y),
                              static_cast<const T*>(task.weight),
                              static_cast<const T*>(task.bias),
                              RowsOf<Wide<T>>(task.statistics),
                              static_cast<Wide<T>>(task.eps),
                              task.x.num_rows,
                              static_cast<int>(task.x.width / pack()),
                              task.is_centred};
    if (task.x.width <= 32 * kHeld)
      launch<T, pack(), 32>(queue, of);
    else if (task.x.width <= 128 * kHeld)
      launch<T, pack(), 128>(queue, of);
    else
      launch<T, pack(), 512>(queue, of);
  });
}

}  // namespace optimus::cuda
