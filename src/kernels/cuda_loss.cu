// Softmax cross entropy on CUDA, with one block per row. The first pass maintains a running maximum and the
// sum of exponentials relative to it. The second pass, while the row is still in the GPU's cache, overwrites
// the logits with the gradient.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

// With this block size, a multiprocessor processes two rows at a time, and the second pass finds most of
// their data in the cache.
constexpr int kThreads = 1024;

// The maximum of some elements, and the sum of e^(x - max) over them.
template <typename T>
struct ExponentialSum {
  Wide<T> max, sum;

  __device__ __forceinline__ void merge(Wide<T> other_max, Wide<T> other_sum) {
    const Wide<T> larger = max > other_max ? max : other_max;
    sum = sum * exponential<T>(max - larger) + other_sum * exponential<T>(other_max - larger);
    max = larger;
  }
  __device__ __forceinline__ void merge_warp() {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      merge(__shfl_xor_sync(0xffffffffu, max, step), __shfl_xor_sync(0xffffffffu, sum, step));
  }
};
// Returns the lowest finite number, which is the initial value of maxima. If it were -infinity, a logit of
// -infinity would lead to infinity minus infinity.
template <typename W>
__device__ __forceinline__ W lowest() {
  return std::is_same_v<W, double> ? static_cast<W>(-1.7976931348623157e308) : static_cast<W>(-3.4028234e38f);
}

// A row with any alignment, divided into the elements before the first whole pack, the packs, and the
// elements after the last pack.
template <typename T>
struct AlignedRow {
  // head is the number of elements before the packs, tail is the index of the first element after them.
  std::int64_t head, num_packs, tail;

  __device__ AlignedRow(const T* row, std::int64_t width) {
    constexpr std::int64_t kBytes = kWidth<T> * sizeof(T);
    const std::int64_t misalignment =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) % kBytes);
    head = min(width, misalignment == 0 ? std::int64_t{0}
                                        : (kBytes - misalignment) / static_cast<std::int64_t>(sizeof(T)));
    num_packs = (width - head) / kWidth<T>;
    tail = head + num_packs * kWidth<T>;
  }
  // Calls visit(index of the first element, count as a constant) for this thread's share.
  template <typename Visit>
  __device__ __forceinline__ void for_each(std::int64_t width, Visit visit) const {
#pragma unroll 2
    for (std::int64_t pack = threadIdx.x; pack < num_packs; pack += kThreads)
      visit(head + pack * kWidth<T>, std::integral_constant<int, kWidth<T>>{});
    if (threadIdx.x < head) visit(static_cast<std::int64_t>(threadIdx.x), std::integral_constant<int, 1>{});
    if (tail + threadIdx.x < width) visit(tail + threadIdx.x, std::integral_constant<int, 1>{});
  }
};

// Returns the sum of exponentials of a whole row, in all threads.
template <typename T>
__device__ ExponentialSum<T> sum_exponentials(const T* row, std::int64_t width,
                                              const AlignedRow<T>& aligned) {
  using W = Wide<T>;
  __shared__ W maxima[kThreads / 32], sums[kThreads / 32];
  ExponentialSum<T> partial{lowest<W>(), 0};
  aligned.for_each(width, [&](std::int64_t at, auto count) {
    Values<T, decltype(count)::value> values;
    values.load(row + at);
    W largest = values.at[0];
#pragma unroll
    for (int i = 1; i < decltype(count)::value; ++i)
      largest = values.at[i] > largest ? values.at[i] : largest;
    if (largest > partial.max) partial.sum *= exponential<T>(partial.max - largest), partial.max = largest;
#pragma unroll
    for (int i = 0; i < decltype(count)::value; ++i)
      partial.sum += exponential<T>(values.at[i] - partial.max);
  });
  partial.merge_warp();
  const int lane = threadIdx.x % 32;
  if (lane == 0) maxima[threadIdx.x / 32] = partial.max, sums[threadIdx.x / 32] = partial.sum;
  __syncthreads();
  partial = {lowest<W>(), 0};
  if (lane < kThreads / 32) partial = {maxima[lane], sums[lane]};
  partial.merge_warp();  // within each warp
  return partial;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    loss_kernel(RowsOf<T> logits, std::int64_t width, const std::int64_t* targets, Wide<T>* losses,
                double scale) {
  using W = Wide<T>;
  T* row = logits.row(blockIdx.x);
  const std::int64_t target = targets[blockIdx.x];
  const AlignedRow<T> aligned(row, width);
  if (target >= width) __trap();  // an internal error, which would access arbitrary memory
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (scale == 0) return;
    aligned.for_each(width, [&](std::int64_t at, auto count) {
      const Values<T, decltype(count)::value> zeros{};
      zeros.store(row + at);
    });
    return;
  }
  const ExponentialSum<T> total = sum_exponentials(row, width, aligned);
  const double shifted_target_logit =
      static_cast<double>(widen(row[target])) - static_cast<double>(total.max);
  if (threadIdx.x == 0)
    losses[blockIdx.x] = static_cast<W>(log(static_cast<double>(total.sum)) - shifted_target_logit);
  if (scale == 0) return;
  __syncthreads();  // all threads have read the target's logit
  const W factor = static_cast<W>(scale / static_cast<double>(total.sum));
  aligned.for_each(width, [&](std::int64_t at, auto count) {
    Values<T, decltype(count)::value> values;
    values.load(row + at);
#pragma unroll
    for (int i = 0; i < decltype(count)::value; ++i)
      values.at[i] = exponential<T>(values.at[i] - total.max) * factor;
    values.store(row + at);
  });
  __syncthreads();  // the target's element is written twice, and this write must be last
  if (threadIdx.x == 0)
    row[target] =
        narrow<T>(static_cast<W>((exp(shifted_target_logit) / static_cast<double>(total.sum) - 1) * scale));
}

}  // namespace

void cross_entropy(const Queue& queue, const LossTask& task) {
  if (task.logits.num_rows == 0 || task.logits.width == 0) return;
  with_element(task.element, [&](auto zero) {
    using T = decltype(zero);
    loss_kernel<T><<<static_cast<unsigned>(task.logits.num_rows), kThreads, 0, queue.stream>>>(
        RowsOf<T>(task.logits), task.logits.width, task.targets, static_cast<Wide<T>*>(task.losses),
        task.gradient_scale);
  });
}

}  // namespace optimus::cuda
