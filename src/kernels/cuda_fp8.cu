// Conversion to fp8 on CUDA. One pass reads a matrix, measures its amax, and writes it in the same order,
// transposed, or both. Both orders are needed because Hopper's fp8 GEMMs require the reduction dimension to
// be contiguous in both operands.
#include "kernels/cuda_fp8.cuh"

namespace optimus::cuda {
namespace {

// Converts without transposition. A thread processes 32 numbers at a time and stores its results in units of
// 16 bytes.
template <typename T, Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(RowsOf<T> x, unsigned num_pieces, unsigned pieces_per_row, bool is_contiguous,
                 std::uint8_t* y, const float* scale_pointer, std::uint32_t* maximum) {
  constexpr int kPieces = 2;
  const float scale = *scale_pointer;
  std::uint32_t largest = 0;
  const unsigned first = blockIdx.x * kThreads * kPieces + threadIdx.x;
  Pack8 in[2 * kPieces] = {};
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const unsigned piece = first + i * kThreads;
    if (piece >= num_pieces) continue;
    const unsigned row = is_contiguous ? 0 : piece / pieces_per_row;
    const T* from = x.row(row) + std::int64_t{16} * (piece - row * pieces_per_row);
    in[2 * i] = load_pack8(from), in[2 * i + 1] = load_pack8(from + 8);
  }
#pragma unroll
  for (const Pack8& eight : in) largest = max_magnitudes(largest, eight);
  uint2 out[2 * kPieces];
  quantize_packs<T, kFormat>(in, is_all_finite<T>(largest), scale, out);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const unsigned piece = first + i * kThreads;
    if (piece < num_pieces)
      *reinterpret_cast<uint4*>(y + std::int64_t{16} * piece) =
          make_uint4(out[2 * i].x, out[2 * i].y, out[2 * i + 1].x, out[2 * i + 1].y);
  }
  update_maximum<T>(largest, maximum);
}

template <typename T, Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(RowsOf<T> x, std::int64_t num_rows, std::int64_t width, std::uint8_t* y,
                std::uint8_t* transposed, const float* scale_pointer, std::uint32_t* maximum) {
  __shared__ std::uint32_t words[kTile * kLine];
  const float scale = *scale_pointer;
  const int pack = static_cast<int>(threadIdx.x) % kPacks, group = static_cast<int>(threadIdx.x) / kPacks;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile,
                     first_column = static_cast<std::int64_t>(blockIdx.x) * kTile,
                     column = first_column + pack * 8;
  std::uint32_t largest = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int tile_row = half * kTile / 2 + group * 4;
    if (column >= width || first_row + tile_row >= num_rows) continue;
    Pack8 in[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) in[r] = load_pack8(x.row(first_row + tile_row + r) + column);
#pragma unroll
    for (const Pack8& eight : in) largest = max_magnitudes(largest, eight);
    uint2 out[4];
    quantize_packs<T, kFormat>(in, is_all_finite<T>(largest), scale, out);
    if (y != nullptr)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        *reinterpret_cast<uint2*>(y + (first_row + tile_row + r) * width + column) = out[r];
    store_transposed_words(out, pack, half * kTile / 8 + group, words);
  }
  update_maximum<T>(largest, maximum);
  store_transposed(words, first_row, num_rows, first_column, width, transposed);
}

template <typename T, Fp8Format kFormat>
void launch(const Queue& queue, const QuantizeTask& task) {
  const auto y = static_cast<std::uint8_t*>(task.y), transposed = static_cast<std::uint8_t*>(task.transposed);
  const std::int64_t rows = task.x.num_rows, width = task.x.width;
  if (transposed == nullptr) {
    const auto pieces_per_row = static_cast<unsigned>(width / 16);
    // Below 2^32, because there are fewer than 2^36 numbers.
    const auto num_pieces = static_cast<unsigned>(rows * pieces_per_row);
    const bool is_contiguous = task.x.outer_stride == width && task.x.num_inner == 1;
    plain_kernel<T, kFormat><<<(num_pieces + 2 * kThreads - 1) / (2 * kThreads), kThreads, 0, queue.stream>>>(
        RowsOf<T>(task.x), num_pieces, pieces_per_row, is_contiguous, y, task.scale, task.maximum);
    return;
  }
  const dim3 blocks(static_cast<unsigned>((width + kTile - 1) / kTile),
                    static_cast<unsigned>((rows + kTile - 1) / kTile));
  tile_kernel<T, kFormat><<<blocks, kThreads, 0, queue.stream>>>(RowsOf<T>(task.x), rows, width, y,
                                                                 transposed, task.scale, task.maximum);
}

template <typename T>
void with_format(const Queue& queue, const QuantizeTask& task) {
  task.format == Fp8Format::e4m3 ? launch<T, Fp8Format::e4m3>(queue, task)
                                 : launch<T, Fp8Format::e5m2>(queue, task);
}

}  // namespace

void quantize(const Queue& queue, const QuantizeTask& task) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  task.element == Element::fp16 ? with_format<__half>(queue, task) : with_format<__nv_bfloat16>(queue, task);
}

}  // namespace optimus::cuda
