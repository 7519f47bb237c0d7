// Gradients of layer norm and RMS norm on CUDA, in one pass. Groups of threads iterate over rows, and each
// thread always processes the same columns. The thread can therefore sum the weight and bias gradients of its
// columns in registers. On request it also sums the columns of the residual and of the result, which are bias
// gradients of the GEMMs around the norm. A block writes its sums as one part. A second, small kernel adds
// the parts in an order that depends only on sizes.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

template <typename T>
struct BackwardArguments {
  RowsOf<T> dy, x, residual, dx;
  const T* weight;
  RowsOf<Wide<T>> statistics;
  Wide<T>* workspace;  // [blocks, kSums, width]
  std::int64_t num_rows;
  int num_packs;
  bool is_centered;
};

// Threads per block. If a group is one warp, a block has four groups; larger groups have a block each.
template <int kGroup>
constexpr int kThreads = kGroup == 32 ? 128 : kGroup;
// Returns the number of blocks that fit into the registers of a multiprocessor without spilling. With several
// blocks, some compute while others wait for their rows.
constexpr int blocks_per_multiprocessor(int group, int elements, int sums) {
  if (group == 512) return 1;
  if (group == 256) return sums == 4 ? 1 : 2;
  if (group == 128) return sums == 4 ? 3 : 4;
  return elements * sums <= 24 ? 4 : elements * sums <= 64 ? 3 : 2;
}

// Computes sums over a group of threads and returns them in all of these threads. The shared memory is
// double-buffered, because a group may still read one half while it fills the other.
template <int kGroup, int kCount, typename W>
struct GroupSumsOf {
  static constexpr int kWarps = kGroup / 32;
  struct Scratch {
    W parts[2][kCount][kWarps];
  };
  Scratch& scratch;
  int buffer = 0;

  __device__ explicit GroupSumsOf(Scratch& memory) : scratch(memory) {}
  __device__ __forceinline__ void operator()(W (&values)[kCount]) {
#pragma unroll
    for (int v = 0; v < kCount; ++v) values[v] = warp_sum(values[v]);
    if constexpr (kGroup > 32) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
      for (int v = 0; v < kCount; ++v)
        if (lane == 0) scratch.parts[buffer][v][warp] = values[v];
      __syncthreads();
#pragma unroll
      for (int v = 0; v < kCount; ++v) {
        values[v] = 0;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) values[v] += scratch.parts[buffer][v][i];
      }
      buffer ^= 1;
    }
  }
};

// The elements of one row that a thread processes, in stored form. All loads are issued before the thread
// waits for any of them.
template <typename T, int kPack, int kPacks>
struct LoadedRow {
  Raw<T, kPack> dy[kPacks], x[kPacks], residual[kPacks];
  Wide<T> mean, rstd;
};

// kSums is the number of column sums: 1 for dy * normed, 2 to add dy, or 4 to also add the residual and dx.
template <typename T, int kPack, int kGroup, int kElements, int kRows, int kSums>
__global__ void __launch_bounds__(kThreads<kGroup>,
                                  sizeof(T) == 8 ? 1 : blocks_per_multiprocessor(kGroup, kElements, kSums))
    backward_kernel(BackwardArguments<T> of) {
  using W = Wide<T>;
  using Sums = GroupSumsOf<kGroup, 2 * kRows, W>;
  constexpr int kPacks = kElements / kPack, kGroups = kThreads<kGroup> / kGroup;
  __shared__ typename Sums::Scratch scratch;
  Sums reduce_sums(scratch);
  const int lane = threadIdx.x % kGroup;
  const W count = static_cast<W>(of.num_packs) * kPack;
  const auto has_pack = [&](int p) { return p * kGroup + lane < of.num_packs; };
  const auto column = [&](int p) { return (static_cast<std::int64_t>(p) * kGroup + lane) * kPack; };
  Raw<T, kPack> weight[kPacks] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (has_pack(p)) weight[p].load(of.weight + column(p));
  W sums[kSums][kPacks][kPack] = {};
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kGroups * kRows;
  std::int64_t first_row = (static_cast<std::int64_t>(blockIdx.x) * kGroups + threadIdx.x / kGroup) * kRows;
  for (; first_row < of.num_rows; first_row += step) {
    LoadedRow<T, kPack, kPacks> loaded[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = min(first_row + r, of.num_rows - 1);
      const W* statistics = of.statistics.row(row);
      loaded[r].mean = of.is_centered ? statistics[0] : W(0),
      loaded[r].rstd = statistics[of.is_centered ? 1 : 0];
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        if (has_pack(p)) {
          loaded[r].dy[p].load(of.dy.row(row) + column(p));
          loaded[r].x[p].load(of.x.row(row) + column(p));
          if (of.residual.data != nullptr) loaded[r].residual[p].load(of.residual.row(row) + column(p));
        }
    }
    W row_sums[2 * kRows] = {};  // for each row: the sums of dy * weight, and of dy * weight * normed row
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        if (has_pack(p) && (kRows == 1 || first_row + r < of.num_rows))
#pragma unroll
          for (int i = 0; i < kPack; ++i) {
            const W dy = loaded[r].dy[p].at(i), upstream = dy * weight[p].at(i),
                    normed = (loaded[r].x[p].at(i) - loaded[r].mean) * loaded[r].rstd;
            row_sums[2 * r] += upstream, row_sums[2 * r + 1] += upstream * normed;
            sums[0][p][i] += dy * normed;
            if constexpr (kSums > 1) sums[1][p][i] += dy;
          }
    reduce_sums(row_sums);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (kRows > 1 && first_row + r >= of.num_rows) continue;
      const W upstream_mean = of.is_centered ? row_sums[2 * r] / count : W(0),
              projection = row_sums[2 * r + 1] / count;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!has_pack(p)) continue;
        // The thread that writes an element has read it, so dx may alias dy or the residual.
        Values<T, kPack> result;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const W normed = (loaded[r].x[p].at(i) - loaded[r].mean) * loaded[r].rstd;
          result.at[i] = loaded[r].rstd *
                         (loaded[r].dy[p].at(i) * weight[p].at(i) - upstream_mean - normed * projection);
          if (of.residual.data != nullptr) result.at[i] += loaded[r].residual[p].at(i);
          if constexpr (kSums == 4) {
            if (of.residual.data != nullptr) sums[2][p][i] += loaded[r].residual[p].at(i);
            sums[3][p][i] += result.at[i];
          }
        }
        result.store(of.dx.row(first_row + r) + column(p));
      }
    }
  }
  // Write the block's part of the column sums. If groups are warps, their sums are first added in order.
  __shared__ W columns[kGroups > 1 ? kGroups : 1][kGroups > 1 ? kElements * 32 : 1];
  const std::int64_t width = static_cast<std::int64_t>(of.num_packs) * kPack;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    W* part = of.workspace + (static_cast<std::int64_t>(blockIdx.x) * kSums + s) * width;
    if constexpr (kGroups == 1) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        if (has_pack(p)) store_wide(part + column(p), sums[s][p]);
    } else {
      __syncthreads();
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
#pragma unroll
        for (int i = 0; i < kPack; ++i)
          if (has_pack(p)) columns[threadIdx.x / kGroup][column(p) + i] = sums[s][p][i];
      __syncthreads();
      for (std::int64_t c = threadIdx.x; c < width; c += kThreads<kGroup>) {
        W sum = columns[0][c];
        for (int g = 1; g < kGroups; ++g) sum += columns[g][c];
        part[c] = sum;
      }
    }
  }
}

template <typename T, int kPack, int kGroup, int kElements, int kRows, int kSums>
void launch(const Queue& queue, const BackwardArguments<T>& of, std::int64_t blocks) {
  backward_kernel<T, kPack, kGroup, kElements, kRows, kSums>
      <<<static_cast<unsigned>(blocks), kThreads<kGroup>, 0, queue.stream>>>(of);
}

// Selects the group size. For 16-bit packs, each thread has the fewest columns that cover a row, and
// processes two rows at a time where groups wait for each other.
template <typename T, int kPack, int kSums>
void launch_for_width(const Queue& queue, const BackwardArguments<T>& of, std::int64_t width,
                      std::int64_t blocks) {
  if constexpr (sizeof(T) == 2 && kPack > 1) {
    if (width <= 256) return launch<T, kPack, 32, 8, 1, kSums>(queue, of, blocks);
    if (width <= 768) return launch<T, kPack, 32, 24, 1, kSums>(queue, of, blocks);
    if (width <= 1024) return launch<T, kPack, 32, 32, 1, kSums>(queue, of, blocks);
    if (width <= 2048) return launch<T, kPack, 128, 16, 2, kSums>(queue, of, blocks);
    if (width <= 4096) return launch<T, kPack, 256, 16, 2, kSums>(queue, of, blocks);
    if (width <= 8192) return launch<T, kPack, 512, 16, 2, kSums>(queue, of, blocks);
    return launch<T, kPack, 512, 32, 1, kSums>(queue, of, blocks);
  } else {
    if (width <= 1024) return launch<T, kPack, 32, 32, 1, kSums>(queue, of, blocks);
    if (width <= 2048) return launch<T, kPack, 128, 16, 1, kSums>(queue, of, blocks);
    return launch<T, kPack, 512, 32, 1, kSums>(queue, of, blocks);
  }
}

bool is_packed(const NormBackwardTask& task) {
  return all_have_packs(size_of(task.element), task.dy, task.x, task.residual, task.dx) &&
         is_aligned(task.weight, 16);
}

int num_sums_of(const NormBackwardTask& task) {
  if (size_of(task.element) > 2 || !is_packed(task)) return 2;
  return !task.is_centered ? 1 : task.residual_sum == nullptr && task.output_sum == nullptr ? 2 : 4;
}

// Returns the number of blocks that fills the device, limited so that each block has enough rows to make the
// cost of its sums small.
std::int64_t num_blocks(const Queue& queue, const NormBackwardTask& task) {
  const std::int64_t width = task.x.width, rows = task.x.num_rows;
  const int group = width <= 1024   ? 32
                    : width <= 2048 ? 128
                    : width <= 4096 ? 256
                                    : 512,
            elements = width <= 256   ? 8
                       : width <= 768 ? 24
                                      : 32;
  const std::int64_t blocks_per_processor = blocks_per_multiprocessor(group, elements, num_sums_of(task)),
                     min_rows_per_block = group == 32 ? 64 : 16;
  return std::max<std::int64_t>(1, std::min(queue.num_multiprocessors * blocks_per_processor,
                                            (rows + min_rows_per_block - 1) / min_rows_per_block));
}

}  // namespace

bool norm_backward_can_sum(const NormBackwardTask& task) {
  return task.is_centered && size_of(task.element) == 2 && is_packed(task);
}

std::int64_t norm_backward_workspace(const Queue& queue, const NormBackwardTask& task) {
  return num_blocks(queue, task) * num_sums_of(task) * task.x.width;
}

void norm_backward(const Queue& queue, const NormBackwardTask& task) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  const std::int64_t blocks = num_blocks(queue, task), width = task.x.width;
  const int num_sums = num_sums_of(task);
  with_pack(task.element, is_packed(task), [&](auto zero, auto pack) {
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
                                  task.is_centered};
    if constexpr (sizeof(T) == 2 && pack() > 1) {
      if (num_sums == 1) return launch_for_width<T, pack(), 1>(queue, of, width, blocks);
      if (num_sums == 4) return launch_for_width<T, pack(), 4>(queue, of, width, blocks);
    }
    launch_for_width<T, pack(), 2>(queue, of, width, blocks);
  });
  add_partial_sums(queue,
                   {.element = task.element == Element::fp64 ? Element::fp64 : Element::fp32,
                    .parts = task.workspace,
                    .num_parts = blocks,
                    .stride = num_sums * width,
                    .width = width,
                    .sums = {task.weight_gradient, task.bias_gradient, task.residual_sum, task.output_sum}});
}

}  // namespace optimus::cuda
