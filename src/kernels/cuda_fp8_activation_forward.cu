// Activation functions with fp8 output, in row order and transposed, so that the input of the next GEMM is
// never stored in 16 bits. The tiles are those of cuda_fp8.cuh. This file also contains the transposition of
// fp8 matrices.
#include "kernels/cuda_activation_functions.cuh"
#include "kernels/cuda_fp8.cuh"

namespace optimus::cuda {
namespace {

using Number = __nv_bfloat16;

template <typename Function, bool kIsGated>
__device__ __forceinline__ std::uint32_t apply_activation(std::uint32_t x, std::uint32_t gate) {
  const float2 in = widen_pair<Number>(x);
  if constexpr (kIsGated) {
    const float2 gates = widen_pair<Number>(gate);
    return pack_bf16_pair(Function::at(gates.x).value * in.x, Function::at(gates.y).value * in.y);
  } else {
    return pack_bf16_pair(Function::at(in.x).value, Function::at(in.y).value);
  }
}
template <typename Function, bool kIsGated>
__device__ __forceinline__ Pack8 apply_activation(const Pack8& x, const Pack8& gate) {
  return {make_uint4(apply_activation<Function, kIsGated>(x.words.x, gate.words.x),
                     apply_activation<Function, kIsGated>(x.words.y, gate.words.y),
                     apply_activation<Function, kIsGated>(x.words.z, gate.words.z),
                     apply_activation<Function, kIsGated>(x.words.w, gate.words.w))};
}

// Calls rows(row, column, out) for each block of four rows and eight columns of this thread, and writes the
// results transposed. All threads call `between`, which must contain a barrier, before the results are read
// from shared memory.
template <typename Rows4, typename Between>
__device__ __forceinline__ void transpose_tile(std::int64_t num_rows, std::int64_t width,
                                               std::uint8_t* transposed, Rows4 rows, Between between) {
  __shared__ std::uint32_t words[kTile * kLine];
  const int pack = static_cast<int>(threadIdx.x) % kPacks, group = static_cast<int>(threadIdx.x) / kPacks;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile,
                     first_column = static_cast<std::int64_t>(blockIdx.x) * kTile,
                     column = first_column + pack * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first_row + half * kTile / 2 + group * 4;
    if (column >= width || row >= num_rows) continue;
    uint2 out[4];
    rows(row, column, out);
    store_transposed_words(out, pack, half * kTile / 8 + group, words);
  }
  between();
  store_transposed(words, first_row, num_rows, first_column, width, transposed);
}

template <typename Function, bool kIsGated>
__global__ void __launch_bounds__(kThreads)
    activation_kernel(RowsOf<Number> x, RowsOf<Number> gate, std::int64_t num_rows, std::int64_t width,
                      std::uint8_t* y, std::uint8_t* transposed, const float* scale_pointer,
                      std::uint32_t* maximum) {
  const float scale = *scale_pointer;
  std::uint32_t largest = 0;
  const auto rows = [&](std::int64_t row, std::int64_t column, uint2(&out)[4]) {
    Pack8 in[4], gates[4] = {};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      in[r] = load_pack8(x.row(row + r) + column);
      if constexpr (kIsGated) gates[r] = load_pack8(gate.row(row + r) + column);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      in[r] = apply_activation<Function, kIsGated>(in[r], gates[r]);
      largest = max_magnitudes(largest, in[r]);
    }
    quantize_packs<Number, Fp8Format::e4m3>(in, is_all_finite<Number>(largest), scale, out);
#pragma unroll
    for (int r = 0; r < 4; ++r) *reinterpret_cast<uint2*>(y + (row + r) * width + column) = out[r];
  };
  transpose_tile(num_rows, width, transposed, rows, [&] { update_maximum<Number>(largest, maximum); });
}

__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const std::uint8_t* from, std::int64_t num_rows, std::int64_t width, std::uint8_t* to) {
  const auto rows = [&](std::int64_t row, std::int64_t column, uint2(&out)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) out[r] = *reinterpret_cast<const uint2*>(from + (row + r) * width + column);
  };
  transpose_tile(num_rows, width, to, rows, [] { __syncthreads(); });
}

dim3 tiles_of(std::int64_t num_rows, std::int64_t width) {
  return {static_cast<unsigned>((width + kTile - 1) / kTile),
          static_cast<unsigned>((num_rows + kTile - 1) / kTile)};
}

}  // namespace

void activation_to_fp8(const Queue& queue, const ActivationTask& task, const Fp8Pointers& output) {
  const std::int64_t rows = task.x.num_rows, width = task.x.width;
  if (rows == 0 || width == 0) return;
  with_function<Number>(task.kind, [&](auto function) {
    using Function = decltype(function);
    const auto start = [&](auto kernel) {
      kernel<<<tiles_of(rows, width), kThreads, 0, queue.stream>>>(
          RowsOf<Number>(task.x), RowsOf<Number>(task.gate), rows, width,
          static_cast<std::uint8_t*>(output.y), static_cast<std::uint8_t*>(output.transposed), output.scale,
          output.maximum);
    };
    if (task.gate.data != nullptr)
      start(activation_kernel<Function, true>);
    else
      start(activation_kernel<Function, false>);
  });
}

void transpose_fp8(const Queue& queue, const void* from, std::int64_t num_rows, std::int64_t width,
                   void* to) {
  if (num_rows == 0 || width == 0) return;
  transpose_kernel<<<tiles_of(num_rows, width), kThreads, 0, queue.stream>>>(
      static_cast<const std::uint8_t*>(from), num_rows, width, static_cast<std::uint8_t*>(to));
}

}  // namespace optimus::cuda
