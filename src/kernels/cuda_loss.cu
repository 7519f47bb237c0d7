// Softmax cross entropy on CUDA: a block a row. The first pass keeps a running maximum and the sum of exponentials below it, and
// the row, as far as it goes, in shared memory; the second writes the gradient over the logits. So memory is read once, and not
// a second time when more rows are under way than the chip's cache holds.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

// Bytes of a row in shared memory: two rows at a time on a multiprocessor where they go in whole, else one.
constexpr std::int64_t kHalf = 112 << 10, kMostHeld = 220 << 10;

// sum of e^(x - max) over some elements, and that max.
template <typename T>
struct ExponentialSum {
  Wide<T> max, sum;

  __device__ __forceinline__ void merge(Wide<T> other_max, Wide<T> other_sum) {
    const Wide<T> larger = max > other_max ? max : other_max;
    sum = sum * exponential<T>(max - larger) + other_sum * exponential<T>(other_max - larger);
    max = larger;
  }
};
// The lowest finite number, so that no infinity is subtracted from itself where logits are -infinity.
template <typename W>
__device__ __forceinline__ W lowest() {
  return std::is_same_v<W, double> ? static_cast<W>(-1.7976931348623157e308) : static_cast<W>(-3.4028234e38f);
}

// A row of any alignment: elements before the first whole pack, packs, and the rest.
template <typename T>
struct Pieces {
  std::int64_t head, num_packs, tail;  // the tail begins here

  __device__ Pieces(const T* row, std::int64_t width) {
    constexpr std::int64_t kBytes = kWidth<T> * sizeof(T);
    const std::int64_t over = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) % kBytes);
    head = min(width, over == 0 ? std::int64_t{0} : (kBytes - over) / static_cast<std::int64_t>(sizeof(T)));
    num_packs = (width - head) / kWidth<T>;
    tail = head + num_packs * kWidth<T>;
  }
  // Calls visit(first element, count as a constant) for this thread's share.
  template <typename Visit>
  __device__ __forceinline__ void for_each(std::int64_t width, Visit visit) const {
#pragma unroll 4
    for (std::int64_t pack = threadIdx.x; pack < num_packs; pack += blockDim.x)
      visit(head + pack * kWidth<T>, std::integral_constant<int, kWidth<T>>{});
    if (threadIdx.x < head) visit(static_cast<std::int64_t>(threadIdx.x), std::integral_constant<int, 1>{});
    if (tail + threadIdx.x < width) visit(tail + threadIdx.x, std::integral_constant<int, 1>{});
  }
};

// The packs of a row that are held, each for the thread that reads it again.
template <typename T>
struct HeldPacks {
  Pack<T, kWidth<T>>* packs;
  std::int64_t head, end;  // elements before and behind

  __device__ __forceinline__ bool has(std::int64_t at) const { return at >= head && at < end; }
  __device__ __forceinline__ Pack<T, kWidth<T>>& pack(std::int64_t at) const {
    return packs[(at - head) / kWidth<T>];
  }
};

// Of a whole row, in all threads.
template <typename T>
__device__ ExponentialSum<T> sum_exponentials(const T* row, std::int64_t width, const Pieces<T>& pieces,
                                              const HeldPacks<T>& held) {
  using W = Wide<T>;
  __shared__ W maxima[32], sums[32];
  ExponentialSum<T> own{lowest<W>(), 0};
  pieces.for_each(width, [&](std::int64_t at, auto count) {
    Values<T, decltype(count)::value> values;
    values.load(row + at);
    if constexpr (decltype(count)::value == kWidth<T>)
      if (held.has(at)) held.pack(at) = *reinterpret_cast<const Pack<T, kWidth<T>>*>(row + at);
    W largest = values.at[0];
#pragma unroll
    for (int i = 1; i < decltype(count)::value; ++i)
      largest = values.at[i] > largest ? values.at[i] : largest;
    if (largest > own.max) own.sum *= exponential<T>(own.max - largest), own.max = largest;
#pragma unroll
    for (int i = 0; i < decltype(count)::value; ++i) own.sum += exponential<T>(values.at[i] - own.max);
  });
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    own.merge(__shfl_xor_sync(0xffffffffu, own.max, step), __shfl_xor_sync(0xffffffffu, own.sum, step));
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = own.max, sums[threadIdx.x / 32] = own.sum;
  __syncthreads();
  own = {maxima[0], sums[0]};
  for (int warp = 1; warp < blockDim.x / 32; ++warp) own.merge(maxima[warp], sums[warp]);
  return own;
}

template <typename T>
__global__ void __launch_bounds__(1024)
    loss_kernel(RowsOf<T> logits, std::int64_t width, const std::int64_t* targets, Wide<T>* losses,
                double scale, std::int64_t num_held) {
  using W = Wide<T>;
  extern __shared__ uint4 memory[];
  T* row = logits.row(blockIdx.x);
  const std::int64_t target = targets[blockIdx.x];
  const Pieces<T> pieces(row, width);
  if (target >= width) __trap();  // a defect of ours; its address is anybody's
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (scale == 0) return;
    pieces.for_each(width, [&](std::int64_t at, auto count) {
      const Values<T, decltype(count)::value> zeros{};
      zeros.store(row + at);
    });
    return;
  }
  const HeldPacks<T> held{reinterpret_cast<Pack<T, kWidth<T>>*>(memory), pieces.head,
                          min(pieces.tail, pieces.head + num_held * kWidth<T>)};
  const ExponentialSum<T> total = sum_exponentials(row, width, pieces, held);
  const double of_target = static_cast<double>(widen(row[target])) - static_cast<double>(total.max);
  if (threadIdx.x == 0) losses[blockIdx.x] = static_cast<W>(log(static_cast<double>(total.sum)) - of_target);
  if (scale == 0) return;
  __syncthreads();  // all have read the target's logit
  const W factor = static_cast<W>(scale / static_cast<double>(total.sum));
  pieces.for_each(width, [&](std::int64_t at, auto count) {
    Values<T, decltype(count)::value> values;
    if (decltype(count)::value == kWidth<T> && held.has(at))
      values.load(reinterpret_cast<const T*>(&held.pack(at)));
    else
      values.load(row + at);
#pragma unroll
    for (int i = 0; i < decltype(count)::value; ++i)
      values.at[i] = exponential<T>(values.at[i] - total.max) * factor;
    values.store(row + at);
  });
  __syncthreads();  // the target's place is written twice, this time last
  if (threadIdx.x == 0)
    row[target] = narrow<T>(static_cast<W>((exp(of_target) / static_cast<double>(total.sum) - 1) * scale));
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
    const std::int64_t packs = task.logits.width / kWidth<T>;
    const std::int64_t room = room_of_block();
    const std::int64_t num_held = task.gradient_scale == 0 ? 0 : std::min(packs, room / kPackBytes);
    const int threads = num_held * kPackBytes <= kHalf ? 512 : 1024;
    // More than 48 KiB must be asked for, on each device once; it costs a microsecond, so nobody remembers.
    cudaFuncSetAttribute(loss_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(room));
    loss_kernel<T><<<static_cast<unsigned>(task.logits.num_rows), threads,
                     static_cast<std::size_t>(num_held * kPackBytes), queue.stream>>>(
        RowsOf<T>(task.logits), task.logits.width, task.targets, static_cast<Wide<T>*>(task.losses),
        task.gradient_scale, num_held);
  });
}

}  // namespace optimus::cuda
