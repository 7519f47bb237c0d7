// Softmax cross entropy on CUDA: a block a row. The first pass keeps a running maximum and the sum of exponentials below it, and
// the row, as far as it goes, in shared memory; the second writes the gradient over the logits. So memory is read once, also
// when more rows are under way than the chip's cache holds.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

// Bytes of a row in shared memory: two rows at a time on a multiprocessor where they go in whole, else one.
constexpr std::int64_t kHalf = 112 << 10, kMostHeld = 220 << 10;
constexpr int kBatch = 4;  // packs that a thread asks for before it waits

// sum of e^(x - max) over some elements, and that max.
template <typename T>
struct ExponentialSum {
  Wide<T> max, sum;

  __device__ __forceinline__ void merge(Wide<T> other_max, Wide<T> other_sum) {
    const Wide<T> larger = max > other_max ? max : other_max;
    sum = sum * exponential<T>(max - larger) + other_sum * exponential<T>(other_max - larger);
    max = larger;
  }
  // Some neighbours of a row: x(i), i below count.
  template <int kCount, typename Read>
  __device__ __forceinline__ void add(Read x) {
    Wide<T> largest = x(0);
#pragma unroll
    for (int i = 1; i < kCount; ++i) largest = x(i) > largest ? x(i) : largest;
    if (largest > max) sum *= exponential<T>(max - largest), max = largest;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += exponential<T>(x(i) - max);
  }
};
// The lowest finite number, so that no infinity is subtracted from itself where logits are -infinity.
template <typename W>
__device__ __forceinline__ W lowest() {
  return std::is_same_v<W, double> ? static_cast<W>(-1.7976931348623157e308) : static_cast<W>(-3.4028234e38f);
}

// A row of any alignment: elements before the first whole pack, packs, and the rest. The first num_held packs are held in shared
// memory, each for the thread that reads it again.
template <typename T>
struct Row {
  static constexpr int kPack = kWidth<T>;
  using Held = Raw<T, kPack>;
  T* data;
  Held* held;
  std::int64_t width, head, num_packs, tail, num_held;  // the tail begins there

  __device__ Row(T* row, std::int64_t size, void* memory, std::int64_t most)
      : data(row), held(static_cast<Held*>(memory)), width(size) {
    constexpr std::int64_t kBytes = kPack * sizeof(T);
    const std::int64_t over = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) % kBytes);
    head = min(width, over == 0 ? std::int64_t{0} : (kBytes - over) / static_cast<std::int64_t>(sizeof(T)));
    num_packs = (width - head) / kPack;
    tail = head + num_packs * kPack;
    num_held = min(most, num_packs);
  }
  __device__ __forceinline__ T* place(std::int64_t pack) const { return data + head + pack * kPack; }
  // Calls visit(element) for this thread's share of what is in no pack.
  template <typename Visit>
  __device__ __forceinline__ void for_each_single(Visit visit) const {
    if (threadIdx.x < head) visit(static_cast<std::int64_t>(threadIdx.x));
    if (tail + threadIdx.x < width) visit(tail + threadIdx.x);
  }
};

// Of a whole row, in all threads.
template <typename T>
__device__ ExponentialSum<T> sum_exponentials(const Row<T>& row) {
  using W = Wide<T>;
  __shared__ W maxima[32], sums[32];
  ExponentialSum<T> own{lowest<W>(), 0};
  for (std::int64_t first = threadIdx.x; first < row.num_packs; first += kBatch * blockDim.x) {
    typename Row<T>::Held some[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (const std::int64_t pack = first + b * blockDim.x; pack < row.num_packs)
        some[b].load(row.place(pack));
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int64_t pack = first + b * blockDim.x;
      if (pack >= row.num_packs) break;
      own.template add<Row<T>::kPack>([&](int i) { return some[b].at(i); });
      if (pack < row.num_held) row.held[pack] = some[b];
    }
  }
  row.for_each_single(
      [&](std::int64_t at) { own.template add<1>([&](int) { return widen(row.data[at]); }); });
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    own.merge(__shfl_xor_sync(0xffffffffu, own.max, step), __shfl_xor_sync(0xffffffffu, own.sum, step));
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = own.max, sums[threadIdx.x / 32] = own.sum;
  __syncthreads();
  own = {maxima[0], sums[0]};
  for (int warp = 1; warp < blockDim.x / 32; ++warp) own.merge(maxima[warp], sums[warp]);
  return own;
}

// x = e^(x - max) * factor, for every element.
template <typename T>
__device__ __forceinline__ void write_gradient(const Row<T>& row, Wide<T> max, Wide<T> factor) {
  const auto change = [&](Wide<T> x) { return exponential<T>(x - max) * factor; };
#pragma unroll 4
  for (std::int64_t pack = threadIdx.x; pack < row.num_packs; pack += blockDim.x) {
    typename Row<T>::Held some;
    if (pack < row.num_held)
      some = row.held[pack];
    else
      some.load(row.place(pack));
    Values<T, Row<T>::kPack> values;
#pragma unroll
    for (int i = 0; i < Row<T>::kPack; ++i) values.at[i] = change(some.at(i));
    values.store(row.place(pack));
  }
  row.for_each_single([&](std::int64_t at) { row.data[at] = narrow<T>(change(widen(row.data[at]))); });
}

template <typename T>
__device__ void clear(const Row<T>& row) {
  const Values<T, Row<T>::kPack> zeros{};
  for (std::int64_t pack = threadIdx.x; pack < row.num_packs; pack += blockDim.x)
    zeros.store(row.place(pack));
  row.for_each_single([&](std::int64_t at) { row.data[at] = narrow<T>(Wide<T>(0)); });
}

template <typename T>
__global__ void __launch_bounds__(1024)
    loss_kernel(RowsOf<T> logits, std::int64_t width, const std::int64_t* targets, Wide<T>* losses,
                double scale, std::int64_t most_held) {
  using W = Wide<T>;
  extern __shared__ uint4 memory[];
  const Row<T> row(logits.row(blockIdx.x), width, memory, most_held);
  const std::int64_t target = targets[blockIdx.x];
  if (target >= width) __trap();  // a defect of ours; its address is anybody's
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (scale != 0) clear(row);
    return;
  }
  const ExponentialSum<T> total = sum_exponentials(row);
  const double of_target = static_cast<double>(widen(row.data[target])) - static_cast<double>(total.max);
  if (threadIdx.x == 0) losses[blockIdx.x] = static_cast<W>(log(static_cast<double>(total.sum)) - of_target);
  if (scale == 0) return;
  __syncthreads();  // all have read the target's logit
  write_gradient<T>(row, total.max, static_cast<W>(scale / static_cast<double>(total.sum)));
  __syncthreads();  // the target's place is written twice, this time last
  if (threadIdx.x == 0)
    row.data[target] =
        narrow<T>(static_cast<W>((exp(of_target) / static_cast<double>(total.sum) - 1) * scale));
}

// Shared memory that a block may have beside its few own numbers.
std::int64_t room_of_block() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return std::min<std::int64_t>(kMostHeld, bytes - 1024);
}

}  // namespace

void cross_entropy(const Queue& queue, const LossTask& task) {
  if (task.logits.num_rows == 0 || task.logits.width == 0) return;
  with_element(task.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr std::int64_t kPackBytes = kWidth<T> * sizeof(T);
    const std::int64_t room = room_of_block(),
                       most_held = std::min(task.logits.width / kWidth<T>, room / kPackBytes);
    const int threads = most_held * kPackBytes <= kHalf ? 512 : 1024;
    // More than 48 KiB must be asked for, on each device once; it costs a microsecond, so nobody remembers.
    cudaFuncSetAttribute(loss_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(room));
    loss_kernel<T><<<static_cast<unsigned>(task.logits.num_rows), threads,
                     static_cast<std::size_t>(most_held * kPackBytes), queue.stream>>>(
        RowsOf<T>(task.logits), task.logits.width, task.targets, static_cast<Wide<T>*>(task.losses),
        task.gradient_scale, most_held);
  });
}

}  // namespace optimus::cuda
