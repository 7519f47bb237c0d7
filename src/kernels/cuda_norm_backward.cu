// Gradients of layer norm and RMS norm on CUDA, in one pass: groups of threads walk over rows; each thread keeps to its columns,
// so that it can sum their weight and bias gradients in registers. The groups' sums are added up in a second, small kernel, in
// an order that depends on sizes alone.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

template <typename T>
struct BackwardArguments {
  RowsOf<T> dy, x, residual, dx;
  const T* weight;
  RowsOf<Wide<T>> statistics;
  Wide<T>* workspace;  // [groups, is_centred ? 2 : 1, width]
  std::int64_t num_rows;
  int num_packs;
  bool is_centred;
};

// What a thread holds of one row: upstream gradient and normed x.
template <typename T, int kPack>
struct Held {
  Values<T, kPack> dy, normed;
};

// dx = residual + rstd * (dy * weight - plain - normed * along). Every element was read by the thread that writes it, so dx
// may lie where dy or residual do.
template <typename T, int kPack>
__device__ __forceinline__ void write_gradient(const BackwardArguments<T>& of, std::int64_t row,
                                               std::int64_t place, const Held<T, kPack>& held, Wide<T> plain,
                                               Wide<T> along, Wide<T> rstd) {
  Values<T, kPack> weight, result;
  weight.load(of.weight + place);
  if (of.residual.data != nullptr) result.load(of.residual.row(row) + place);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const Wide<T> inner = rstd * (held.dy.at[i] * weight.at[i] - plain - held.normed.at[i] * along);
    result.at[i] = of.residual.data != nullptr ? result.at[i] + inner : inner;
  }
  result.store(of.dx.row(row) + place);
}

// How many blocks the registers of a multiprocessor are to hold: rows are waited for, and other blocks fill the wait.
template <typename T, int kGroup>
constexpr int kBlocks = sizeof(T) == 8  ? 1
                        : kGroup == 32  ? 4
                        : kGroup == 128 ? 8
                        : kGroup == 256 ? 4
                                        : 1;

template <typename T, int kPack, int kGroup, int kElements>
__global__ void __launch_bounds__(kGroup == 32 ? 128 : kGroup, kBlocks<T, kGroup>)
    backward_kernel(BackwardArguments<T> of) {
  using W = Wide<T>;
  using Sums = GroupSums<kGroup, W>;
  constexpr int kPacks = kElements / kPack;
  __shared__ typename Sums::Room room;
  Sums sums(room);
  const int lane = threadIdx.x % kGroup;
  const std::int64_t groups = static_cast<std::int64_t>(gridDim.x) * (blockDim.x / kGroup);
  const std::int64_t group =
      static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kGroup) + threadIdx.x / kGroup;
  const W count = static_cast<W>(of.num_packs) * kPack;
  W weight_sum[kPacks][kPack] = {}, bias_sum[kPacks][kPack] = {};
  for (std::int64_t row = group; row < of.num_rows; row += groups) {
    const W* statistics = of.statistics.row(row);
    const W mean = of.is_centred ? statistics[0] : W(0), rstd = statistics[of.is_centred ? 1 : 0];
    Held<T, kPack> held[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (const int c = p * kGroup + lane; c < of.num_packs) {
        held[p].dy.load(of.dy.row(row) + static_cast<std::int64_t>(c) * kPack);
        held[p].normed.load(of.x.row(row) + static_cast<std::int64_t>(c) * kPack);
      }
    W plain = 0, along = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (const int c = p * kGroup + lane; c < of.num_packs) {
        Values<T, kPack> weight;
        weight.load(of.weight + static_cast<std::int64_t>(c) * kPack);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const W dy = held[p].dy.at[i], normed = (held[p].normed.at[i] - mean) * rstd;
          held[p].normed.at[i] = normed;
          plain += dy * weight.at[i], along += dy * weight.at[i] * normed;
          weight_sum[p][i] += dy * normed, bias_sum[p][i] += dy;
        }
      }
    sums(plain, along);
    plain = of.is_centred ? plain / count : W(0), along /= count;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (const int c = p * kGroup + lane; c < of.num_packs)
        write_gradient<T, kPack>(of, row, static_cast<std::int64_t>(c) * kPack, held[p], plain, along, rstd);
  }
  const std::int64_t width = static_cast<std::int64_t>(of.num_packs) * kPack;
  W* part = of.workspace + group * width * (of.is_centred ? 2 : 1);
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (const int c = p * kGroup + lane; c < of.num_packs) {
      store_wide(part + static_cast<std::int64_t>(c) * kPack, weight_sum[p]);
      if (of.is_centred) store_wide(part + width + static_cast<std::int64_t>(c) * kPack, bias_sum[p]);
    }
}

// Groups of one warp come four a block.
bool is_warp(const Rows& x) { return x.width <= 32 * 16; }

template <typename T, int kPack, int kGroup, int kElements>
void launch(const Queue& queue, const BackwardArguments<T>& of, std::int64_t groups) {
  constexpr int kThreads = kGroup == 32 ? 128 : kGroup;
  const auto blocks = static_cast<unsigned>(groups / (kThreads / kGroup));
  backward_kernel<T, kPack, kGroup, kElements><<<blocks, kThreads, 0, queue.stream>>>(of);
}

template <typename T, int kPack>
void launch_for_width(const Queue& queue, const BackwardArguments<T>& of, const Rows& x,
                      std::int64_t groups) {
  if (is_warp(x)) return launch<T, kPack, 32, 16>(queue, of, groups);
  if (x.width <= 128 * 8) return launch<T, kPack, 128, 8>(queue, of, groups);
  if (x.width <= 256 * 8) return launch<T, kPack, 256, 8>(queue, of, groups);
  if (x.width <= 512 * 8) return launch<T, kPack, 512, 8>(queue, of, groups);
  if (x.width <= 512 * 16) return launch<T, kPack, 512, 16>(queue, of, groups);
  launch<T, kPack, 512, 32>(queue, of, groups);
}

}  // namespace

// Enough groups to fill the device, but each with rows enough that the sums of groups are little beside the rows.
std::int64_t norm_backward_groups(const Queue& queue, const Rows& x) {
  const std::int64_t at_once = is_warp(x) ? 16 : x.width <= 1024 ? 8 : x.width <= 2048 ? 4 : 1;
  const std::int64_t full = queue.num_processors * at_once, worth = (x.num_rows + 15) / 16;
  const std::int64_t groups = std::max<std::int64_t>(1, std::min(full, worth));
  return is_warp(x) ? (groups + 3) / 4 * 4 : groups;
}

void norm_backward(const Queue& queue, const NormBackwardTask& task) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  const std::int64_t groups = norm_backward_groups(queue, task.x), width = task.x.width;
  const bool is_packed = all_have_packs(size_of(task.element), task.dy, task.x, task.residual, task.dx) &&
                         is_aligned(task.weight, 16) && is_aligned(task.workspace, 16);
  with_pack(task.element, is_packed, [&](auto zero, auto pack) {
    using T = decltype(zero);
    const BackwardArguments<T> of{RowsOf<T>(task.dy),
                                  RowsOf<T>(task.x),
                                  RowsOf<T>(task.residual),
                                  RowsOf<T>(task.dx),
                                  static_cast<const T*>(task.weight),
                                  RowsOf<Wide<T>>(task.statistics),
                                  static_cast<Wide<T>*>(task.workspace),
                                  task.x.num_rows,
                                  static_cast<int>(width / pack()),
                                  task.is_centred};
    launch_for_width<T, pack()>(queue, of, task.x, groups);
  });
  const Element wide = task.element == Element::fp64 ? Element::fp64 : Element::fp32;
  PartsTask parts{wide,  task.workspace,      groups, width * (task.is_centred ? 2 : 1),
                  width, task.weight_gradient};
  add_parts(queue, parts);
  if (!task.is_centred) return;
  parts.parts = static_cast<const char*>(task.workspace) + width * size_of(wide);
  parts.sum = task.bias_gradient;
  add_parts(queue, parts);
}

}  // namespace optimus::cuda
