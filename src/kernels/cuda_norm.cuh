// Layer norm and RMS norm on CUDA. A group of threads (a warp or a block) keeps a row in registers, so that
// it is read only once. The launch selects the output: the element type (cuda_norm.cu) or fp8
// (cuda_fp8_norm.cu).
#pragma once

#include "kernels/cuda_math.cuh"

namespace optimus::cuda {

template <typename T>
struct NormArguments {
  RowsOf<T> x;
  const T *weight, *bias;
  RowsOf<Wide<T>> statistics;
  Wide<T> eps;
  std::int64_t num_rows;
  int num_packs;
  bool is_centered;
};

// Threads per block. If a group is one warp, a block has four groups; larger groups have a block each.
template <int kGroup>
constexpr int kNormThreads = kGroup == 32 ? 128 : kGroup;

template <typename T, int kPack, int kGroup, int kElements, typename Output>
__global__ void __launch_bounds__(kNormThreads<kGroup>) norm_kernel(NormArguments<T> of, Output to) {
  using W = Wide<T>;
  using Sums = GroupSums<kGroup, W>;
  constexpr int kPacks = kElements / kPack;
  __shared__ typename Sums::Scratch scratch;
  Sums sums(scratch);
  const int groups = kNormThreads<kGroup> / kGroup, lane = threadIdx.x % kGroup;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x / kGroup;
  if (row >= of.num_rows) return;  // the whole group returns
  const auto has_pack = [&](int p) { return p * kGroup + lane < of.num_packs; };
  const auto column = [&](int p) { return (static_cast<std::int64_t>(p) * kGroup + lane) * kPack; };
  const T* from = of.x.row(row);
  Raw<T, kPack> loaded[kPacks] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (has_pack(p)) loaded[p].load(from + column(p));
  const W count = static_cast<W>(of.num_packs) * kPack;
  W mean = 0, unused = 0;
  if (of.is_centered) {
    W sum = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum += loaded[p].at(i);  // absent elements are 0
    sums(sum, unused);
    mean = sum / count;
  }
  W squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (has_pack(p))
#pragma unroll
      for (int i = 0; i < kPack; ++i) squares += (loaded[p].at(i) - mean) * (loaded[p].at(i) - mean);
  unused = 0;
  sums(squares, unused);
  const W rstd = 1 / sqrt(squares / count + of.eps);
  if (lane == 0) {
    W* statistics = of.statistics.row(row);
    if (of.is_centered) statistics[0] = mean;
    statistics[of.is_centered ? 1 : 0] = rstd;
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!has_pack(p)) continue;
    Values<T, kPack> weight, bias, result;
    weight.load(of.weight + column(p));
    if (of.bias != nullptr) bias.load(of.bias + column(p));
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      result.at[i] = (loaded[p].at(i) - mean) * (rstd * weight.at[i]);
      if (of.bias != nullptr) result.at[i] += bias.at[i];
    }
    to.store(row, column(p), result);
  }
  to.template end<kNormThreads<kGroup>>();
}

template <typename T, int kPack, int kGroup, int kElements, typename Output>
void launch_norm(const Queue& queue, const NormArguments<T>& of, const Output& to) {
  constexpr std::int64_t kRows = kNormThreads<kGroup> / kGroup;
  const auto blocks = static_cast<unsigned>((of.num_rows + kRows - 1) / kRows);
  norm_kernel<T, kPack, kGroup, kElements><<<blocks, kNormThreads<kGroup>, 0, queue.stream>>>(of, to);
}

// Selects the group size. For 16-bit packs, this is the smallest number of threads that can keep a row in
// registers with few idle threads.
template <typename T, int kPack, typename Output>
void launch_norm_for_width(const Queue& queue, const NormArguments<T>& of, std::int64_t width,
                           const Output& to) {
  if constexpr (sizeof(T) == 2 && kPack > 1) {
    if (width <= 256) return launch_norm<T, kPack, 32, 8>(queue, of, to);
    if (width <= 768) return launch_norm<T, kPack, 32, 24>(queue, of, to);
    if (width <= 1024) return launch_norm<T, kPack, 32, 32>(queue, of, to);
    if (width <= 2048) return launch_norm<T, kPack, 64, 32>(queue, of, to);
  }
  if (width <= 1024) return launch_norm<T, kPack, 32, 32>(queue, of, to);
  if (width <= 4096) return launch_norm<T, kPack, 128, 32>(queue, of, to);
  launch_norm<T, kPack, 512, 32>(queue, of, to);
}

template <typename T, int kPack>
NormArguments<T> norm_arguments(const NormTask& task) {
  return {RowsOf<T>(task.x),
          static_cast<const T*>(task.weight),
          static_cast<const T*>(task.bias),
          RowsOf<Wide<T>>(task.statistics),
          static_cast<Wide<T>>(task.eps),
          task.x.num_rows,
          static_cast<int>(task.x.width / kPack),
          task.is_centered};
}

}  // namespace optimus::cuda
