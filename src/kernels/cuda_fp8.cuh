// Device functions shared by the kernels that write fp8.
//
// For transposition, a block processes a tile of 128 x 128. A thread loads packs of 8 columns from 4
// adjacent rows, so that 4 rows of a column form one word. The words pass through shared memory to threads
// that write 16 rows of a column at once. Lines of shared memory are ordered so that a warp's words are in
// 32 different banks (stride 34; the columns that one instruction writes are adjacent lines).
//
// Maxima are computed on pairs of 16-bit words with the sign bits cleared, because these words have the same
// order as the magnitudes. If a word is not finite, the thread takes a slower path that turns infinity into
// NaN. Most blocks find no new maximum, so they skip the atomic update of the shared maximum, which would
// serialize all blocks.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda_math.cuh"

namespace optimus::cuda {

// kPacks is the number of packs in a row of a tile. kLine is the number of words in a line of shared memory.
constexpr int kTile = 128, kThreads = 256, kPacks = kTile / 8, kLine = 34;

// Eight adjacent 16-bit elements.
struct Pack8 {
  uint4 words;
};
template <typename T>
__device__ __forceinline__ Pack8 load_pack8(const T* from) {
  return {*reinterpret_cast<const uint4*>(from)};
}

// Returns, for each 16-bit half, the larger of the magnitudes in `largest` and `word`.
__device__ __forceinline__ std::uint32_t max_magnitudes(std::uint32_t largest, std::uint32_t word) {
  return __vmaxu2(largest, word & 0x7fff7fffu);
}
__device__ __forceinline__ std::uint32_t max_magnitudes(std::uint32_t largest, const Pack8& eight) {
  largest = max_magnitudes(max_magnitudes(largest, eight.words.x), eight.words.y);
  return max_magnitudes(max_magnitudes(largest, eight.words.z), eight.words.w);
}
template <typename T>
__device__ __forceinline__ bool is_all_finite(std::uint32_t largest) {
  constexpr std::uint32_t kInfinity = std::is_same_v<T, __half> ? 0x7c00u : 0x7f80u;
  return (largest & 0xffffu) < kInfinity && largest >> 16 < kInfinity;
}
// Converts a 16-bit magnitude to fp32 and returns its bits.
template <typename T>
__device__ __forceinline__ std::uint32_t magnitude_as_fp32_bits(std::uint32_t magnitude) {
  if constexpr (std::is_same_v<T, __half>)
    return __float_as_uint(__half2float(__ushort_as_half(static_cast<unsigned short>(magnitude))));
  else
    return magnitude << 16;
}

template <typename T>
__device__ __forceinline__ float2 widen_pair(std::uint32_t word) {
  if constexpr (std::is_same_v<T, __half>)
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  else
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

__device__ __forceinline__ std::uint32_t pack_bf16_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Adds x * 0 if the values may not be finite. Infinity then becomes NaN, which stays NaN in fp8; infinity
// itself would saturate at the largest number.
template <bool kIsFinite>
__device__ __forceinline__ float scaled(float x, float scale) {
  return kIsFinite ? x * scale : fmaf(x, 0.0f, x * scale);
}
template <typename T, Fp8Format kFormat, bool kIsFinite>
__device__ __forceinline__ std::uint32_t quantize_pair(std::uint32_t word, float scale) {
  constexpr __nv_fp8_interpretation_t kind = kFormat == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const float2 pair = widen_pair<T>(word);
  return __nv_cvt_float2_to_fp8x2(
      make_float2(scaled<kIsFinite>(pair.x, scale), scaled<kIsFinite>(pair.y, scale)), __NV_SATFINITE, kind);
}
template <typename T, Fp8Format kFormat, bool kIsFinite>
__device__ __forceinline__ uint2 quantize_pack(const Pack8& eight, float scale) {
  const auto pair = [&](std::uint32_t word) { return quantize_pair<T, kFormat, kIsFinite>(word, scale); };
  return make_uint2(pair(eight.words.x) | pair(eight.words.y) << 16, pair(eight.words.z) | pair(eight.words.w)
                                                                                               << 16);
}
template <typename T, Fp8Format kFormat, int kCount>
__device__ __forceinline__ void quantize_packs(const Pack8 (&from)[kCount], bool is_finite, float scale,
                                               uint2 (&to)[kCount]) {
  if (is_finite) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = quantize_pack<T, kFormat, true>(from[i], scale);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = quantize_pack<T, kFormat, false>(from[i], scale);
  }
}

// Transposes four words of four bytes: byte c of each row word becomes column word c.
__device__ __forceinline__ void transpose_bytes(const std::uint32_t (&rows)[4], std::uint32_t (&columns)[4]) {
  const std::uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140),
                      high01 = __byte_perm(rows[0], rows[1], 0x7362),
                      low23 = __byte_perm(rows[2], rows[3], 0x5140),
                      high23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410), columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410), columns[3] = __byte_perm(high01, high23, 0x7632);
}

// Raises `maximum`, which contains the bits of an fp32 number, to the largest magnitude in the pairs of all
// threads of the block. `maximum` may be null. All threads of the block must call this function, because it
// contains a barrier.
template <typename T, int kBlock = kThreads>
__device__ __forceinline__ void update_maximum(std::uint32_t pair, std::uint32_t* maximum) {
  __shared__ std::uint32_t warp_maxima[kBlock / 32];
  const std::uint32_t largest = __reduce_max_sync(0xffffffffu, max(pair & 0xffffu, pair >> 16));
  if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0 || maximum == nullptr) return;
  std::uint32_t block_maximum = 0;
#pragma unroll
  for (int warp = 0; warp < kBlock / 32; ++warp) block_maximum = max(block_maximum, warp_maxima[warp]);
  block_maximum = magnitude_as_fp32_bits<T>(block_maximum);
  if (block_maximum > __ldcg(maximum)) atomicMax(maximum, block_maximum);
}

// Stores four rows of 8 columns, transposed, into lines of shared memory, [kTile * kLine]. `pack` is the
// index of the 8 columns in the tile, and `group` is the index of the four rows.
__device__ __forceinline__ void store_transposed_words(const uint2 (&out)[4], int pack, int group,
                                                       std::uint32_t* words) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    std::uint32_t rows[4], columns[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) rows[r] = part == 0 ? out[r].x : out[r].y;
    transpose_bytes(rows, columns);
#pragma unroll
    for (int c = 0; c < 4; ++c) words[((part * 4 + c) * kPacks + pack) * kLine + group] = columns[c];
  }
}
// Waits at a barrier, then writes the transposed tile from shared memory, with 8 threads per column and 16
// rows per thread. `to` is the whole transposed matrix, [width, num_rows].
__device__ __forceinline__ void store_transposed(const std::uint32_t* words, std::int64_t first_row,
                                                 std::int64_t num_rows, std::int64_t first_column,
                                                 std::int64_t width, std::uint8_t* to) {
  const int piece = static_cast<int>(threadIdx.x) % 8;
  const std::int64_t row = first_row + piece * 16;
  if (row >= num_rows) return;
#pragma unroll
  for (int c = static_cast<int>(threadIdx.x) / 8; c < kTile; c += kThreads / 8) {
    if (first_column + c >= width) break;
    const auto* line = reinterpret_cast<const uint2*>(words + (c % 8 * kPacks + c / 8) * kLine + piece * 4);
    const uint2 first = line[0], second = line[1];
    *reinterpret_cast<uint4*>(to + (first_column + c) * num_rows + row) =
        make_uint4(first.x, first.y, second.x, second.y);
  }
}

}  // namespace optimus::cuda
