// Code shared by the CUDA kernels: elements and their wider type, 16-byte packs of adjacent elements,
// exponentials, sums over a group of threads, and the assignment of a plane of rows and packs to blocks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda_launch.h"

namespace optimus::cuda {

template <typename T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <typename T>
using Wide = typename WideOf<T>::type;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
template <typename T>
__device__ __forceinline__ T narrow(Wide<T> x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ double narrow<double>(double x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half narrow<__half>(float x) {
  return __float2half_rn(x);
}

// kPack adjacent elements that are loaded and stored at once. The size and the alignment are kPack *
// sizeof(T) bytes.
template <typename T, int kPack>
struct alignas(sizeof(T) * kPack) Pack {
  T values[kPack];
};

// The number of elements in 16 bytes. fp64 is used for comparison only and is processed one by one.
template <typename T>
constexpr int kWidth = std::is_same_v<T, double> ? 1 : static_cast<int>(16 / sizeof(T));

// kPack adjacent elements converted to the wider type, in which kernels compute.
template <typename T, int kPack>
struct Values {
  Wide<T> at[kPack];

  __device__ __forceinline__ void load(const T* from) {
    const Pack<T, kPack> pack = *reinterpret_cast<const Pack<T, kPack>*>(from);
#pragma unroll
    for (int i = 0; i < kPack; ++i) at[i] = widen(pack.values[i]);
  }
  __device__ __forceinline__ void store(T* to) const {
    Pack<T, kPack> pack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.values[i] = narrow<T>(at[i]);
    *reinterpret_cast<Pack<T, kPack>*>(to) = pack;
  }
};

// kPack adjacent elements in their stored form, for kernels that keep many elements in registers. 16-bit
// elements are stored as 32-bit words, because the compiler would otherwise use a register for each of them.
template <typename T, int kPack, bool kIsWords = sizeof(T) == 2 && kPack % 2 == 0>
struct Raw {
  Pack<T, kPack> pack;
  __device__ __forceinline__ void load(const T* from) {
    pack = *reinterpret_cast<const Pack<T, kPack>*>(from);
  }
  __device__ __forceinline__ Wide<T> at(int i) const { return widen(pack.values[i]); }
};
template <typename T, int kPack>
struct Raw<T, kPack, true> {
  Pack<std::uint32_t, kPack / 2> words;
  __device__ __forceinline__ void load(const T* from) {
    words = *reinterpret_cast<const Pack<std::uint32_t, kPack / 2>*>(from);
  }
  __device__ __forceinline__ float at(int i) const {
    const std::uint32_t word = words.values[i / 2];
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
    else
      return __half2float(__ushort_as_half(static_cast<unsigned short>(i % 2 == 0 ? word : word >> 16)));
  }
};

// Load and store kPack adjacent elements that already have the wider type, 16 bytes at a time.
template <typename W, int kPack>
__device__ __forceinline__ void load_wide(const W* from, W (&to)[kPack]) {
  constexpr int kPiece = kPack * sizeof(W) > 16 ? static_cast<int>(16 / sizeof(W)) : kPack;
#pragma unroll
  for (int i = 0; i < kPack; i += kPiece) {
    const Pack<W, kPiece> pack = *reinterpret_cast<const Pack<W, kPiece>*>(from + i);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) to[i + j] = pack.values[j];
  }
}
template <typename W, int kPack>
__device__ __forceinline__ void store_wide(W* to, const W (&from)[kPack]) {
  constexpr int kPiece = kPack * sizeof(W) > 16 ? static_cast<int>(16 / sizeof(W)) : kPack;
#pragma unroll
  for (int i = 0; i < kPack; i += kPiece) {
    Pack<W, kPiece> pack;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) pack.values[j] = from[i + j];
    *reinterpret_cast<Pack<W, kPiece>*>(to + i) = pack;
  }
}

// e^x and 1 / x. Results that are rounded to 16 bits use the hardware's approximations (2^-21; results below
// 2^-126 are 0), which doubles the speed of kernels that are otherwise limited by arithmetic.
template <typename T>
__device__ __forceinline__ Wide<T> exponential(Wide<T> x) {
  if constexpr (std::is_same_v<T, double>)
    return exp(x);
  else if constexpr (std::is_same_v<T, float>)
    return expf(x);
  else {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
  }
}
template <typename T>
__device__ __forceinline__ Wide<T> inverse(Wide<T> x) {
  if constexpr (sizeof(T) == 2) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  } else {
    return 1 / x;
  }
}

// Rows of one element type, in device code.
template <typename T>
struct RowsOf {
  T* data = nullptr;
  std::int64_t outer_stride = 0, inner_stride = 0;
  // 32 bits, because 64-bit divisions cost registers. This suffices, because there are fewer than 2^31 rows
  // in total (cuda_tensors.h).
  unsigned num_inner = 1;

  RowsOf() = default;
  explicit RowsOf(const Rows& rows)
      : data(static_cast<T*>(rows.data)),
        outer_stride(rows.outer_stride),
        inner_stride(rows.inner_stride),
        num_inner(static_cast<unsigned>(rows.num_inner)) {}
  __device__ __forceinline__ T* row(std::int64_t index) const {
    if (num_inner == 1) return data + index * outer_stride;
    const unsigned outer = static_cast<unsigned>(index) / num_inner;
    return data + outer * outer_stride + (static_cast<unsigned>(index) - outer * num_inner) * inner_stride;
  }
};

// Returns the sum over the threads of a warp, in all of them.
template <typename W>
__device__ __forceinline__ W warp_sum(W value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Computes two sums over kGroup threads (a warp, or a block of kGroup threads) and returns them in all of
// these threads. The shared memory `scratch` is double-buffered, because a group may still read one half
// while it fills the other.
template <int kGroup, typename W>
struct GroupSums {
  static constexpr int kWarps = kGroup / 32;
  struct Scratch {
    W parts[2][2][kWarps];
  };
  Scratch& scratch;
  int buffer = 0;

  __device__ explicit GroupSums(Scratch& memory) : scratch(memory) {}
  __device__ __forceinline__ void operator()(W& a, W& b) {
    a = warp_sum(a), b = warp_sum(b);
    if constexpr (kGroup > 32) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      if (lane == 0) scratch.parts[buffer][0][warp] = a, scratch.parts[buffer][1][warp] = b;
      __syncthreads();
      a = 0, b = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) a += scratch.parts[buffer][0][i], b += scratch.parts[buffer][1][i];
      buffer ^= 1;
    }
  }
};

inline bool is_aligned(const void* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
}
// Returns whether every row starts at a 16-byte-aligned address and consists of whole packs of 16 bytes. True
// for an absent tensor.
inline bool has_packs(const Rows& rows, int element_size) {
  if (rows.data == nullptr) return true;
  const int count = 16 / element_size;
  return is_aligned(rows.data, 16) && rows.width % count == 0 && rows.outer_stride % count == 0 &&
         (rows.num_inner == 1 || rows.inner_stride % count == 0);
}
template <typename... RowsTypes>
bool all_have_packs(int element_size, const RowsTypes&... rows) {
  return (has_packs(rows, element_size) && ...);
}

// The launch grid for a plane of rows and columns, where a column is a pack. A block covers threads.x columns
// of threads.y rows. Blocks loop over the rows.
struct PlaneShape {
  dim3 blocks, threads;
};
inline PlaneShape plane_shape(std::int64_t num_rows, std::int64_t num_columns) {
  // Select the multiple of 32 up to 256 that leaves the fewest threads without a column.
  std::int64_t block_columns = 32, min_idle = INT64_MAX;
  for (std::int64_t count = 32; count <= 256; count += 32) {
    const std::int64_t idle = (num_columns + count - 1) / count * count - num_columns;
    if (idle <= min_idle) block_columns = count, min_idle = idle;
  }
  const std::int64_t block_rows = std::max<std::int64_t>(1, 256 / block_columns);
  const std::int64_t grid_columns = (num_columns + block_columns - 1) / block_columns,
                     grid_rows = (num_rows + block_rows - 1) / block_rows;
  return {dim3(static_cast<unsigned>(std::min<std::int64_t>(grid_columns, 1 << 30)),
               static_cast<unsigned>(std::min<std::int64_t>(grid_rows, 65535))),
          dim3(static_cast<unsigned>(block_columns), static_cast<unsigned>(block_rows))};
}
// Calls visit(row, column) for the positions of the plane that this thread processes.
template <typename Visit>
__device__ __forceinline__ void for_each_position(std::int64_t num_rows, std::int64_t num_columns,
                                                  Visit visit) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= num_columns) return;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < num_rows;
       row += step)
    visit(row, column);
}

// Calls visit(T{}) with T the element type.
template <typename Visit>
void with_element(Element element, Visit visit) {
  switch (element) {
    case Element::fp64:
      return visit(double{});
    case Element::fp32:
      return visit(float{});
    case Element::bf16:
      return visit(__nv_bfloat16{});
    case Element::fp16:
      return visit(__half{});
  }
}
// Calls visit(T{}, integral_constant of the pack size): kWidth<T> if is_packed, otherwise 1.
template <typename Visit>
void with_pack(Element element, bool is_packed, Visit visit) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    if (is_packed && kWidth<T> > 1)
      visit(zero, std::integral_constant<int, kWidth<T>>{});
    else
      visit(zero, std::integral_constant<int, 1>{});
  });
}

}  // namespace optimus::cuda
