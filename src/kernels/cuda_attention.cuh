// Shared by the attention kernels: tensor core operations on 16-bit elements, tiles in shared memory, and
// the random bits of dropout in the layout of the tensor cores.
//
// A matrix operation is mma.m16n8k16. Lane 4 g + t of a warp holds, of the [16, 8] accumulator, the rows g
// and g + 8 at the columns 2 t and 2 t + 1. Two adjacent accumulators, rounded to 16 bits, are the left
// factor [16, 16] of the next product, without a move between lanes. Read next: attention_dropout.h, then
// cuda_attention_forward.cu.
#pragma once

#include "kernels/attention_dropout.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {

// The most shared memory that a block of threads uses.
constexpr int attention_shared_bytes(int head_dim) { return head_dim * 1024 + 8192; }

constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ std::uint32_t shared_address(const void* data) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(data));
}

// c += a b. a: [16, 16], b: [16, 8].
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <typename T>
__device__ __forceinline__ std::uint32_t packed(float low, float high) {
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <typename T>
__device__ __forceinline__ float2 unpacked(std::uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  else
    return __half22float2(*reinterpret_cast<__half2*>(&pair));
}

__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Copies 16 bytes to shared memory.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
// The same, or zeros; then `from` is not read.
__device__ __forceinline__ void copy_async_or_zero(std::uint32_t to, const void* from, bool is_inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_inside ? 16 : 0));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Rows of kDim elements in shared memory, at a multiple of 256 bytes. The 16-byte chunk c of row r is stored
// as chunk c ^ r % 8, so that eight rows' chunks are in different banks.
template <int kDim>
struct SharedRows {
  static constexpr int kRowBytes = kDim * 2, kChunks = kDim / 8;
  static OPTIMUS_HOST_DEVICE constexpr int bytes(int rows) { return rows * kRowBytes; }
  static __device__ __forceinline__ std::uint32_t offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
};

// A thread's part in copying rows of one head to shared memory. A sequence has fewer than 2^31 elements from
// its first row to its last (fused_attention_supports).
template <typename T, int kDim, int kThreads>
class RowCopy {
 public:
  __device__ __forceinline__ RowCopy(const T* first_row_of_head, std::int64_t stride)
      : rows_(first_row_of_head),
        stride_(static_cast<int>(stride)),
        offset_(first_row() * stride_ + chunk() * 8) {}
  // Starts to copy kRows rows of the sequence, zeros from row `length` on.
  template <int kRows>
  __device__ __forceinline__ void load(std::uint32_t tile, int row, int length) const {
    constexpr int kCopies = kRows / kRowsAtOnce;
    const std::uint32_t to = tile + SharedRows<kDim>::offset(first_row(), chunk());
    int from = offset_ + row * stride_;
    if (row + kRows <= length) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i, from += kRowsAtOnce * stride_)
        copy_async(to + SharedRows<kDim>::bytes(i * kRowsAtOnce), rows_ + from);
    } else {
#pragma unroll 1
      for (int i = 0; i < kCopies; ++i, from += kRowsAtOnce * stride_) {
        const bool is_inside = row + first_row() + i * kRowsAtOnce < length;
        copy_async_or_zero(to + SharedRows<kDim>::bytes(i * kRowsAtOnce), is_inside ? rows_ + from : rows_,
                           is_inside);
      }
    }
  }

 private:
  static constexpr int kRowsAtOnce = kThreads / (kDim / 8);  // a multiple of 8
  static __device__ __forceinline__ int chunk() { return static_cast<int>(threadIdx.x) % (kDim / 8); }
  static __device__ __forceinline__ int first_row() { return static_cast<int>(threadIdx.x) / (kDim / 8); }
  const T* rows_;
  int stride_, offset_;
};

// A lane's address for loading matrices of [16, 16] elements from a tile.
template <int kDim>
struct OperandAddress {
  std::uint32_t value;

  // As a left factor, or as a right factor of which the tile has the transposed (load_transposed).
  static __device__ __forceinline__ OperandAddress of_rows(std::uint32_t tile, int first_row, int lane) {
    return {tile + SharedRows<kDim>::offset(first_row + lane % 16, lane / 16)};
  }
  // As a right factor: two matrices of [16, 8].
  static __device__ __forceinline__ OperandAddress of_columns(std::uint32_t tile, int lane) {
    return {tile + SharedRows<kDim>::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2)};
  }
  // step: columns 16 * step ..; row: a multiple of 16.
  __device__ __forceinline__ std::uint32_t at(int step, int row) const {
    return (value ^ static_cast<std::uint32_t>(32 * step)) +
           static_cast<std::uint32_t>(row * SharedRows<kDim>::kRowBytes);
  }
  __device__ __forceinline__ void load(std::uint32_t (&to)[4], int step, int row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at(step, row)));
  }
  __device__ __forceinline__ void load_transposed(std::uint32_t (&to)[4], int step, int row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at(step, row)));
  }
  __device__ __forceinline__ OperandAddress operator+(int bytes) const {
    return {value + static_cast<std::uint32_t>(bytes)};
  }
};

// Writes a warp's accumulators, [16 * kRowTiles, kDim], times a factor for each row, to `num_valid` rows in
// global memory through the warp's own rows of shared memory.
template <typename T, int kDim, int kRowTiles>
__device__ __forceinline__ void store_rows(const float (&values)[kRowTiles][kDim / 8][4],
                                           const float (&factors)[kRowTiles][2], std::uint32_t tile, T* to,
                                           std::int64_t stride, int num_valid) {
  using Rows = SharedRows<kDim>;
  const int lane = threadIdx.x % 32, group = lane / 4;
#pragma unroll
  for (int r = 0; r < 2 * kRowTiles; ++r)
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const float* pair = &values[r / 2][n][r % 2 * 2];
      const float factor = factors[r / 2][r % 2];
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + Rows::offset(8 * r + group, n) + lane % 4 * 4),
                   "r"(packed<T>(pair[0] * factor, pair[1] * factor))
                   : "memory");
    }
  __syncwarp();
  constexpr int kRowsAtOnce = 32 / Rows::kChunks;
#pragma unroll
  for (int first = 0; first < 16 * kRowTiles; first += kRowsAtOnce) {
    const int row = first + lane / Rows::kChunks, chunk = lane % Rows::kChunks;
    uint4 words;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(tile + Rows::offset(row, chunk)));
    if (row < num_valid) *reinterpret_cast<uint4*>(to + row * stride + chunk * 8) = words;
  }
}

// Which scores are retained, as bit 7 of the byte of each score.
struct RetainedBits {
  std::uint32_t word[4];
};

__device__ __forceinline__ std::uint32_t permuted_bytes(std::uint32_t a, std::uint32_t b,
                                                        std::uint32_t selector) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
  return result;
}
// All ones if bit 7 of byte `byte` is set, otherwise zero: 16 bits for each of two words, or 32 bits.
__device__ __forceinline__ std::uint32_t pair_mask(std::uint32_t low, std::uint32_t high, int byte) {
  return permuted_bytes(low, high, 0xcc88u + 0x1111u * static_cast<std::uint32_t>(byte));
}
__device__ __forceinline__ float retained_or_zero(float value, std::uint32_t word, int byte) {
  const std::uint32_t mask = permuted_bytes(word, word, 0x8888u + 0x1111u * static_cast<std::uint32_t>(byte));
  return __uint_as_float(__float_as_uint(value) & mask);
}

// The dropout of one head.
struct HeadDropout {
  std::uint64_t key;
  std::uint32_t low_bits, is_low;  // the threshold's lower 7 bits in each byte; all ones if it is below 128
  float scale;

  __device__ __forceinline__ HeadDropout(const FusedAttentionTask& task, std::int64_t sequence, int head)
      : key(0),
        low_bits((task.threshold & 127) * 0x01010101u),
        is_low(task.threshold < 128 ? 0xffffffffu : 0),
        scale(scale_of(task)) {
    const std::uint64_t derived =
        derived_key(task.sample_keys[sequence], static_cast<std::uint64_t>(task.first_head + head));
    // From one lane, so that the compiler knows that the key is the same in all.
    const std::uint32_t low = __shfl_sync(0xffffffffu, static_cast<std::uint32_t>(derived), 0);
    const std::uint32_t high = __shfl_sync(0xffffffffu, static_cast<std::uint32_t>(derived >> 32), 0);
    key = static_cast<std::uint64_t>(high) << 32 | low;
  }
  static __device__ __forceinline__ float scale_of(const FusedAttentionTask& task) {
    return 256.0f / (256.0f - static_cast<float>(task.threshold));
  }
  __device__ __forceinline__ RetainedBits operator()(int tile_row, int tile_column, int lane) const {
    const DropoutWords words =
        dropout_words(key, static_cast<std::uint32_t>(tile_row), static_cast<std::uint32_t>(tile_column),
                      static_cast<std::uint32_t>(lane));
    RetainedBits bits;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Compares the lower 7 bits of each byte, without a borrow between bytes, then the bytes: the majority
      // of the byte's bit 7, the comparison, and whether the threshold is low.
      const std::uint32_t x = words.at[i], y = (x | 0x80808080u) - low_bits;
      asm("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(bits.word[i]) : "r"(x), "r"(y), "r"(is_low));
    }
    return bits;
  }
};

// The 16 bits of a lane in one word: bit 7 - w of byte n is bit 7 of byte n of word w.
__device__ __forceinline__ std::uint32_t gathered(const RetainedBits& bits) {
  return (bits.word[0] & 0x80808080u) | (bits.word[1] >> 1 & 0x40404040u) |
         (bits.word[2] >> 2 & 0x20202020u) | (bits.word[3] >> 3 & 0x10101010u);
}
// The bits of a tile for the transposed accumulators, keys x queries: lane 4 g + t needs those of the keys
// g + 8 n for the queries 2 t and 2 t + 1 (+ 8 h). Bit 7 of byte n of query[q][h] is the score of query 2 t +
// q + 8 h.
struct TransposedBits {
  std::uint32_t query[2][2];

  // `tile`: the gathered bits of the tile's 32 lanes. Uses the keys from `first_key` of the tile on.
  __device__ __forceinline__ TransposedBits(const std::uint32_t* tile, int lane, int first_key) {
    const int source = lane % 4 * 8 + lane / 8, parity = lane / 4 % 2;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const std::uint32_t word = tile[source + 4 * q] << (2 * parity);
      query[q][0] = word >> first_key, query[q][1] = word << 1 >> first_key;
    }
  }
};

}  // namespace optimus::cuda
