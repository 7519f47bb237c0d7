// Layer norm and RMS norm on CUDA: a group of threads, a warp or a block, holds a row in registers, so that it is read once.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

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

// Groups of one warp come four a block, others alone.
template <int kGroup>
constexpr int kThreads = kGroup == 32 ? 128 : kGroup;

template <typename T, int kPack, int kGroup, int kElements>
__global__ void __launch_bounds__(kThreads<kGroup>) norm_kernel(NormArguments<T> of) {
  using W = Wide<T>;
  using Sums = GroupSums<kGroup, W>;
  constexpr int kPacks = kElements / kPack;
  __shared__ typename Sums::Room room;
  Sums sums(room);
  const int groups = kThreads<kGroup> / kGroup, lane = threadIdx.x % kGroup;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x / kGroup;
  if (row >= of.num_rows) return;  // a whole group
  const auto has = [&](int p) { return p * kGroup + lane < of.num_packs; };
  const auto place = [&](int p) { return (static_cast<std::int64_t>(p) * kGroup + lane) * kPack; };
  const T* from = of.x.row(row);
  Raw<T, kPack> held[kPacks] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (has(p)) held[p].load(from + place(p));
  const W count = static_cast<W>(of.num_packs) * kPack;
  W mean = 0, none = 0;
  if (of.is_centred) {
    W sum = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum += held[p].at(i);  // what is not there is 0
    sums(sum, none);
    mean = sum / count;
  }
  W squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (has(p))
#pragma unroll
      for (int i = 0; i < kPack; ++i) squares += (held[p].at(i) - mean) * (held[p].at(i) - mean);
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
    if (!has(p)) continue;
    Values<T, kPack> weight, bias, result;
    weight.load(of.weight + place(p));
    if (of.bias != nullptr) bias.load(of.bias + place(p));
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      result.at[i] = (held[p].at(i) - mean) * (rstd * weight.at[i]);
      if (of.bias != nullptr) result.at[i] += bias.at[i];
    }
    result.store(to + place(p));
  }
}

template <typename T, int kPack, int kGroup, int kElements>
void launch(const Queue& queue, const NormArguments<T>& of) {
  constexpr std::int64_t kRows = kThreads<kGroup> / kGroup;
  const auto blocks = static_cast<unsigned>((of.num_rows + kRows - 1) / kRows);
  norm_kernel<T, kPack, kGroup, kElements><<<blocks, kThreads<kGroup>, 0, queue.stream>>>(of);
}

// 16-bit packs: the fewest threads whose columns hold a row without many of them idle.
template <typename T, int kPack>
void launch_for_width(const Queue& queue, const NormArguments<T>& of, std::int64_t width) {
  if constexpr (sizeof(T) == 2 && kPack > 1) {
    if (width <= 256) return launch<T, kPack, 32, 8>(queue, of);
    if (width <= 768) return launch<T, kPack, 32, 24>(queue, of);
    if (width <= 1024) return launch<T, kPack, 32, 32>(queue, of);
    if (width <= 2048) return launch<T, kPack, 64, 32>(queue, of);
  }
  if (width <= 1024) return launch<T, kPack, 32, 32>(queue, of);
  if (width <= 4096) return launch<T, kPack, 128, 32>(queue, of);
  launch<T, kPack, 512, 32>(queue, of);
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
    launch_for_width<T, pack()>(queue, of, task.x.width);
  });
}

}  // namespace optimus::cuda
