// AdamW on CUDA, in one pass over gradient, master, moments and weight, with four elements per thread. The
// step gate before it (step_scalars.h) runs in a single thread.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

template <typename T>
struct AdamArguments {
  const Wide<T>* gradient;
  Wide<T>*master, *first, *second;
  T* weight;  // may be the master itself
  std::int64_t count;
  double* step_scalars;
  double weight_decay;
  Wide<T> beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
};

// AdamW's factors, which each thread reads once from the step scalars.
template <typename W>
struct AdamFactors {
  W decay, rate, inverse_root, scale;
  __device__ AdamFactors(double* step_scalars, double weight_decay)
      : decay(static_cast<W>(1 - step_scalar(step_scalars, StepScalar::learning_rate) * weight_decay)),
        rate(static_cast<W>(step_scalar(step_scalars, StepScalar::rate))),
        inverse_root(static_cast<W>(step_scalar(step_scalars, StepScalar::inverse_root))),
        scale(static_cast<W>(step_scalar(step_scalars, StepScalar::factor))) {}
};

template <typename T, int kPack>
__device__ __forceinline__ void update(const AdamArguments<T>& of, const AdamFactors<Wide<T>>& by,
                                       std::int64_t at) {
  using W = Wide<T>;
  W gradient[kPack], master[kPack], first[kPack], second[kPack];
  load_wide(of.gradient + at, gradient), load_wide(of.master + at, master);
  load_wide(of.first + at, first), load_wide(of.second + at, second);
  Values<T, kPack> weight;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const W scaled = gradient[i] * by.scale;
    first[i] = of.beta1 * first[i] + of.one_minus_beta1 * scaled;
    second[i] = of.beta2 * second[i] + of.one_minus_beta2 * scaled * scaled;
    const W divisor = sqrt(second[i]) * by.inverse_root + of.epsilon;
    master[i] = master[i] * by.decay - by.rate * (first[i] / divisor);
    weight.at[i] = master[i];
  }
  store_wide(of.first + at, first), store_wide(of.second + at, second), store_wide(of.master + at, master);
  weight.store(of.weight + at);
}

template <typename T, int kPack>
__global__ void __launch_bounds__(256) adam_kernel(const AdamArguments<T> of) {
  if (step_scalar(of.step_scalars, StepScalar::is_finite) == 0) return;
  const AdamFactors<Wide<T>> by(of.step_scalars, of.weight_decay);
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x,
                     step = gridDim.x * 256ll;
  for (std::int64_t pack = thread; pack < of.count / kPack; pack += step)
    update<T, kPack>(of, by, pack * kPack);
  // Fewer than kPack elements remain at the end. The first threads update one of them each.
  const std::int64_t tail_index = of.count / kPack * kPack + thread;
  if (tail_index < of.count) update<T, 1>(of, by, tail_index);
}

__global__ void gate_kernel(GateOptions options, double* step_scalars) {
  compute_gate(options, step_scalars);
}

template <typename T, int kPack>
void launch(const Queue& queue, const AdamArguments<T>& of) {
  const std::int64_t packs = (of.count + kPack - 1) / kPack, blocks = (packs + 255) / 256;
  adam_kernel<T, kPack>
      <<<static_cast<unsigned>(std::min<std::int64_t>(blocks, 1 << 20)), 256, 0, queue.stream>>>(of);
}

}  // namespace

void adamw(const Queue& queue, const AdamTask& task) {
  if (task.count == 0) return;
  bool is_packed = true;
  for (const void* data :
       {task.gradient, static_cast<const void*>(task.master), static_cast<const void*>(task.first),
        static_cast<const void*>(task.second), static_cast<const void*>(task.weight)})
    is_packed = is_packed && is_aligned(data, 16);
  with_element(task.element, [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const AdamArguments<T> of{static_cast<const W*>(task.gradient),
                              static_cast<W*>(task.master),
                              static_cast<W*>(task.first),
                              static_cast<W*>(task.second),
                              static_cast<T*>(task.weight),
                              task.count,
                              task.step_scalars,
                              task.weight_decay,
                              static_cast<W>(task.beta1),
                              static_cast<W>(1 - task.beta1),
                              static_cast<W>(task.beta2),
                              static_cast<W>(1 - task.beta2),
                              static_cast<W>(task.epsilon)};
    is_packed && sizeof(T) < 8 ? launch<T, sizeof(T) < 8 ? 4 : 1>(queue, of) : launch<T, 1>(queue, of);
  });
}

void pass_gate(const Queue& queue, const GateOptions& options, double* step_scalars) {
  gate_kernel<<<1, 1, 0, queue.stream>>>(options, step_scalars);
}

}  // namespace optimus::cuda
