// Gradients of activation functions with fp8 output, in row order and transposed, and their column sums for a
// bias. The gradient is never stored in 16 bits. The tiles are those of cuda_fp8.cuh. With a gate, a block
// processes one tile of each of the two gradients. cuda_fp8_activation_forward.cu has the functions
// themselves.
#include "kernels/cuda_activation_functions.cuh"
#include "kernels/cuda_fp8.cuh"

namespace optimus::cuda {
namespace {

using Number = __nv_bfloat16;

// Computes the gradients of x and of the gate from dy, for two adjacent elements.
template <typename Function, bool kIsGated>
__device__ __forceinline__ void activation_gradient(std::uint32_t dy, std::uint32_t x, std::uint32_t gate,
                                                    std::uint32_t& dx, std::uint32_t& d_gate) {
  const float2 upstream = widen_pair<Number>(dy), in = widen_pair<Number>(x);
  if constexpr (kIsGated) {
    const float2 gates = widen_pair<Number>(gate);
    const ValueAndDerivative<Number> first = Function::at(gates.x), second = Function::at(gates.y);
    d_gate = pack_bf16_pair(upstream.x * in.x * first.derivative, upstream.y * in.y * second.derivative);
    dx = pack_bf16_pair(upstream.x * first.value, upstream.y * second.value);
  } else {
    dx = pack_bf16_pair(upstream.x * Function::at(in.x).derivative,
                        upstream.y * Function::at(in.y).derivative);
  }
}
template <typename Function, bool kIsGated>
__device__ __forceinline__ void activation_gradient(const Pack8& dy, const Pack8& x, const Pack8& gate,
                                                    Pack8& dx, Pack8& d_gate) {
  activation_gradient<Function, kIsGated>(dy.words.x, x.words.x, gate.words.x, dx.words.x, d_gate.words.x);
  activation_gradient<Function, kIsGated>(dy.words.y, x.words.y, gate.words.y, dx.words.y, d_gate.words.y);
  activation_gradient<Function, kIsGated>(dy.words.z, x.words.z, gate.words.z, dx.words.z, d_gate.words.z);
  activation_gradient<Function, kIsGated>(dy.words.w, x.words.w, gate.words.w, dx.words.w, d_gate.words.w);
}

__device__ __forceinline__ void add_columns(const Pack8& eight, float (&sums)[8]) {
  const std::uint32_t words[4] = {eight.words.x, eight.words.y, eight.words.z, eight.words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widen_pair<Number>(words[i]);
    sums[2 * i] += pair.x, sums[2 * i + 1] += pair.y;
  }
}

struct Target {
  std::uint8_t *y = nullptr, *transposed = nullptr;
  std::int64_t columns = 0, first = 0;  // number of columns of y; first column of this gradient
};

// Writes four rows of a thread to y and, transposed, to shared memory.
__device__ __forceinline__ void write_rows(const Pack8 (&rows)[4], std::uint32_t largest, float scale,
                                           const Target& to, std::int64_t row, std::int64_t column, int pack,
                                           int group, std::uint32_t* words) {
  uint2 out[4];
  quantize_packs<Number, Fp8Format::e5m2>(rows, is_all_finite<Number>(largest), scale, out);
#pragma unroll
  for (int r = 0; r < 4; ++r)
    *reinterpret_cast<uint2*>(to.y + (row + r) * to.columns + to.first + column) = out[r];
  store_transposed_words(out, pack, group, words);
}

template <typename Function, bool kIsGated, bool kHasSum>
__global__ void __launch_bounds__(kThreads)
    activation_gradient_kernel(RowsOf<Number> dy, RowsOf<Number> x, RowsOf<Number> gate,
                               std::int64_t num_rows, std::int64_t width, Target x_target, Target gate_target,
                               const float* scale_pointer, std::uint32_t* maximum, float* parts) {
  __shared__ std::uint32_t words[(kIsGated ? 2 : 1) * kTile * kLine];
  __shared__ float column_sums[kHasSum ? kThreads / kPacks : 1][kHasSum ? kTile : 1];
  const float scale = *scale_pointer;
  const int pack = static_cast<int>(threadIdx.x) % kPacks, group = static_cast<int>(threadIdx.x) / kPacks;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile,
                     first_column = static_cast<std::int64_t>(blockIdx.x) * kTile,
                     column = first_column + pack * 8;
  std::uint32_t largest = 0;
  float sums[8] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first_row + half * kTile / 2 + group * 4;
    if (column >= width || row >= num_rows) continue;
    Pack8 upstream[4], in[4], gates[4] = {}, d_gate[4] = {};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      upstream[r] = load_pack8(dy.row(row + r) + column), in[r] = load_pack8(x.row(row + r) + column);
      if constexpr (kIsGated) gates[r] = load_pack8(gate.row(row + r) + column);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      activation_gradient<Function, kIsGated>(upstream[r], in[r], gates[r], in[r], d_gate[r]);
      largest = max_magnitudes(max_magnitudes(largest, in[r]), d_gate[r]);
      if constexpr (kHasSum) add_columns(in[r], sums);
    }
    const int row_group = half * kTile / 8 + group;
    write_rows(in, largest, scale, x_target, row, column, pack, row_group, words);
    if constexpr (kIsGated)
      write_rows(d_gate, largest, scale, gate_target, row, column, pack, row_group, words + kTile * kLine);
  }
  if constexpr (kHasSum)
#pragma unroll
    for (int i = 0; i < 8; ++i) column_sums[group][pack * 8 + i] = sums[i];
  update_maximum<Number>(largest, maximum);  // contains a barrier
  const auto transposed_of = [&](const Target& to) { return to.transposed + to.first * num_rows; };
  store_transposed(words, first_row, num_rows, first_column, width, transposed_of(x_target));
  if constexpr (kIsGated)
    store_transposed(words + kTile * kLine, first_row, num_rows, first_column, width,
                     transposed_of(gate_target));
  if constexpr (kHasSum) {
    const int thread_column = static_cast<int>(threadIdx.x);
    if (thread_column >= kTile || first_column + thread_column >= width) return;
    float sum = 0;
#pragma unroll
    for (int g = 0; g < kThreads / kPacks; ++g) sum += column_sums[g][thread_column];
    parts[blockIdx.y * width + first_column + thread_column] = sum;
  }
}

}  // namespace

std::int64_t quantize_activation_gradient_parts(std::int64_t num_rows) {
  return (num_rows + kTile - 1) / kTile;
}

void quantize_activation_gradient(const Queue& queue, const QuantizeActivationGradientTask& task) {
  const std::int64_t rows = task.x.num_rows, width = task.x.width;
  if (rows == 0 || width == 0) return;
  const bool is_gated = task.gate.data != nullptr;
  const dim3 blocks(static_cast<unsigned>((width + kTile - 1) / kTile),
                    static_cast<unsigned>(quantize_activation_gradient_parts(rows)));
  const std::int64_t columns = is_gated ? 2 * width : width;
  const Target gate_target{static_cast<std::uint8_t*>(task.y), static_cast<std::uint8_t*>(task.transposed),
                           columns, 0};
  Target x_target = gate_target;
  x_target.first = columns - width;
  with_function<Number>(task.kind, [&](auto function) {
    using Function = decltype(function);
    const auto start = [&](auto kernel) {
      kernel<<<blocks, kThreads, 0, queue.stream>>>(RowsOf<Number>(task.dy), RowsOf<Number>(task.x),
                                                    RowsOf<Number>(task.gate), rows, width, x_target,
                                                    gate_target, task.scale, task.maximum, task.workspace);
    };
    if (is_gated)
      start(activation_gradient_kernel<Function, true, false>);
    else if (task.sum == nullptr)
      start(activation_gradient_kernel<Function, false, false>);
    else
      start(activation_gradient_kernel<Function, false, true>);
  });
  if (task.sum == nullptr || is_gated) return;
  add_partial_sums(queue, {.element = Element::fp32,
                           .parts = task.workspace,
                           .num_parts = quantize_activation_gradient_parts(rows),
                           .stride = width,
                           .width = width,
                           .sums = {task.sum}});
}

}  // namespace optimus::cuda
