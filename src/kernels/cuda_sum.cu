// Sums on CUDA. The first kernel computes partial sums, and the second adds these parts in order. The
// assignment of elements to parts depends only on sizes and the device, so sums are deterministic.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

constexpr int kLanes = 32, kDepth = 8;  // threads of a row_kernel block: columns and rows

// Computes part blockIdx.y, which contains the sums of kLanes * kPack columns over rows_per_part rows,
// starting at row blockIdx.y * rows_per_part.
template <typename T, int kPack>
__global__ void __launch_bounds__(kLanes* kDepth)
    row_kernel(RowsOf<T> x, std::int64_t num_rows, std::int64_t num_packs, std::int64_t rows_per_part,
               Wide<T>* parts) {
  using W = Wide<T>;
  __shared__ W scratch[kDepth][kPack][kLanes];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  const std::int64_t begin = blockIdx.y * rows_per_part, end = min(num_rows, begin + rows_per_part);
  W sum[kPack] = {};
  if (column < num_packs) {
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kDepth) {
      Values<T, kPack> values;
      values.load(x.row(row) + column * kPack);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] += values.at[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) scratch[threadIdx.y][i][threadIdx.x] = sum[i];
  __syncthreads();
  if (threadIdx.y != 0 || column >= num_packs) return;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    for (int y = 1; y < kDepth; ++y) sum[i] += scratch[y][i][threadIdx.x];
  W* to = parts + blockIdx.y * (num_packs * kPack) + column * kPack;
#pragma unroll
  for (int i = 0; i < kPack; ++i) to[i] = sum[i];
}

template <typename W>
struct PartialSums {
  W* of[4];
};

// A block sums 32 columns of all parts for sums.of[blockIdx.y]; 32 threads divide the parts of a column
// among themselves.
template <typename W>
__global__ void __launch_bounds__(1024)
    part_kernel(const W* parts, std::int64_t num_parts, std::int64_t stride, std::int64_t width,
                PartialSums<W> sums) {
  __shared__ W scratch[32][33];
  W* sum = sums.of[blockIdx.y];
  if (sum == nullptr) return;
  parts += blockIdx.y * width;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  W partial = 0;
  if (column < width) {
#pragma unroll 8
    for (std::int64_t part = threadIdx.y; part < num_parts; part += 32)
      partial += parts[part * stride + column];
  }
  scratch[threadIdx.y][threadIdx.x] = partial;
  __syncthreads();
  // The values are transposed, so warp y now has column y.
  partial = warp_sum(scratch[threadIdx.x][threadIdx.y]);
  const std::int64_t output_column = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.y;
  if (threadIdx.x == 0 && output_column < width) sum[output_column] += partial;
}

// Returns the sum over a block of 256 threads, in thread 0.
__device__ double block_sum(double value) {
  __shared__ double scratch[8];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 1; i < 8; ++i) value += scratch[i];
  return value;
}

template <typename T, int kPack>
__global__ void __launch_bounds__(256) square_kernel(const T* values, std::int64_t count, double* parts) {
  double sum = 0;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x,
                     step = gridDim.x * 256ll;
#pragma unroll 4
  for (std::int64_t pack = thread; pack < count / kPack; pack += step) {
    Values<T, kPack> pack_values;
    pack_values.load(values + pack * kPack);
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      sum += static_cast<double>(pack_values.at[i]) * static_cast<double>(pack_values.at[i]);
  }
  // Fewer than kPack elements remain at the end. The first threads add one of them each.
  const std::int64_t tail_index = count / kPack * kPack + thread;
  if (tail_index < count) {
    const double value = static_cast<double>(widen(values[tail_index]));
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(256) square_part_kernel(const double* parts, double* sum) {
  double partial = 0;
  for (int i = threadIdx.x; i < kSquareParts; i += 256) partial += parts[i];
  partial = block_sum(partial);
  if (threadIdx.x == 0) *sum += partial;
}

bool is_packed(Element element, const Rows& x) { return has_packs(x, size_of(element)); }

std::int64_t num_column_blocks(Element element, const Rows& x) {
  std::int64_t columns = 0;
  with_pack(element, is_packed(element, x),
            [&](auto, auto pack) { columns = (x.width / pack() + kLanes - 1) / kLanes; });
  return columns;
}

}  // namespace

// Returns the number of parts that fills the device, limited so that each part has at least 64 rows.
std::int64_t sum_parts(const Queue& queue, Element element, const Rows& x) {
  const std::int64_t max_parts =
      queue.num_multiprocessors * 8 / std::max<std::int64_t>(1, num_column_blocks(element, x));
  return std::max<std::int64_t>(1, std::min(max_parts, x.num_rows / 64));
}

void add_rows(const Queue& queue, Element element, const Rows& x, void* sum, void* workspace) {
  if (x.num_rows == 0 || x.width == 0) return;
  const std::int64_t parts = sum_parts(queue, element, x), rows_per_part = (x.num_rows + parts - 1) / parts;
  with_pack(element, is_packed(element, x), [&](auto zero, auto pack) {
    using T = decltype(zero);
    const dim3 blocks(static_cast<unsigned>(num_column_blocks(element, x)), static_cast<unsigned>(parts));
    row_kernel<T, pack()><<<blocks, dim3(kLanes, kDepth), 0, queue.stream>>>(
        RowsOf<T>(x), x.num_rows, x.width / pack(), rows_per_part, static_cast<Wide<T>*>(workspace));
  });
  const Element wide = element == Element::fp64 ? Element::fp64 : Element::fp32;
  add_partial_sums(queue, {.element = wide,
                           .parts = workspace,
                           .num_parts = parts,
                           .stride = x.width,
                           .width = x.width,
                           .sums = {sum}});
}

void add_partial_sums(const Queue& queue, const PartialSumsTask& task) {
  const auto launch = [&](auto zero) {
    using W = decltype(zero);
    PartialSums<W> sums{};
    unsigned num_sums = 0;
    for (unsigned s = 0; s < 4; ++s) {
      sums.of[s] = static_cast<W*>(task.sums[s]);
      if (sums.of[s] != nullptr) num_sums = s + 1;
    }
    const dim3 blocks(static_cast<unsigned>((task.width + 31) / 32), num_sums);
    part_kernel<W><<<blocks, dim3(32, 32), 0, queue.stream>>>(static_cast<const W*>(task.parts),
                                                              task.num_parts, task.stride, task.width, sums);
  };
  if (task.element == Element::fp64)
    launch(double{});
  else
    launch(float{});
}

void add_square_sum(const Queue& queue, Element element, const void* values, std::int64_t count, double* sum,
                    double* workspace) {
  if (count == 0) return;
  with_pack(element, is_aligned(values, 16), [&](auto zero, auto pack) {
    using T = decltype(zero);
    square_kernel<T, pack()>
        <<<kSquareParts, 256, 0, queue.stream>>>(static_cast<const T*>(values), count, workspace);
  });
  square_part_kernel<<<1, 256, 0, queue.stream>>>(workspace, sum);
}

}  // namespace optimus::cuda
