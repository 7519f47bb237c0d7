// Small GEMMs for the attention kernel. They compute c += a b on blocks that fit into the L1 cache.
//
// A tile of c stays in registers during the loop over the reduction dimension. Vector types are explicit,
// because g++ does not keep a two-dimensional tile of plain arrays in registers. The caller pads the rows of
// c to kTileRows and the columns to kVectorLanes, so that there are no remainder loops.
#pragma once

#include <cstdint>
#include <cstring>

namespace optimus {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64, kTileVectors = 4;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32, kTileVectors = 2;  // AVX2 has only 16 vector registers
#else
inline constexpr int kVectorBytes = 16, kTileVectors = 4;
#endif
inline constexpr std::int64_t kTileRows = 4;

template <typename Number>
inline constexpr std::int64_t kVectorLanes = kVectorBytes / static_cast<std::int64_t>(sizeof(Number));

// The left-hand operand, which is a block or its transpose. Its element (row, k) is data[row * row_stride + k
// * k_stride].
template <typename Number>
struct LeftFactor {
  const Number* data;
  std::int64_t row_stride, k_stride;
};

// A block with contiguous rows.
template <typename Number>
struct Block {
  Number* data;
  std::int64_t row_stride;
};

// Computes to += a b for one tile of kTileRows rows and `Vectors` vectors per row. `depth` is the size of the
// reduction dimension.
template <typename Number, int Vectors>
[[gnu::always_inline]] inline void multiply_tile(const LeftFactor<Number>& a, const Block<const Number>& b,
                                                 std::int64_t depth, const Block<Number>& to) {
  using Vector [[gnu::vector_size(kVectorBytes)]] = Number;
  constexpr std::int64_t kLaneCount = kVectorLanes<Number>;
  Vector sums[kTileRows][Vectors];
#pragma GCC unroll 8
  for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v)
      std::memcpy(&sums[row][v], to.data + row * to.row_stride + v * kLaneCount, sizeof(Vector));
  const Number* left = a.data;
  const Number* right = b.data;
  for (std::int64_t k = 0; k < depth; ++k, left += a.k_stride, right += b.row_stride) {
    Vector right_vectors[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) std::memcpy(&right_vectors[v], right + v * kLaneCount, sizeof(Vector));
#pragma GCC unroll 8
    for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sums[row][v] += left[row * a.row_stride] * right_vectors[v];
  }
#pragma GCC unroll 8
  for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v)
      std::memcpy(to.data + row * to.row_stride + v * kLaneCount, &sums[row][v], sizeof(Vector));
}

// Computes c [rows, columns] += a [rows, depth] * b [depth, columns]. Rows are padded to kTileRows, columns
// to kVectorLanes.
template <typename Number>
[[gnu::noinline]] void multiply_add(const LeftFactor<Number>& a, const Block<const Number>& b,
                                    const Block<Number>& c, std::int64_t rows, std::int64_t columns,
                                    std::int64_t depth) {
  constexpr std::int64_t kTileWidth = kVectorLanes<Number> * kTileVectors;
  for (std::int64_t row = 0; row < rows; row += kTileRows) {
    const LeftFactor<Number> left{a.data + row * a.row_stride, a.row_stride, a.k_stride};
    std::int64_t column = 0;
    for (; column + kTileWidth <= columns; column += kTileWidth)
      multiply_tile<Number, kTileVectors>(left, {b.data + column, b.row_stride}, depth,
                                          {c.data + row * c.row_stride + column, c.row_stride});
    for (; column < columns; column += kVectorLanes<Number>)
      multiply_tile<Number, 1>(left, {b.data + column, b.row_stride}, depth,
                               {c.data + row * c.row_stride + column, c.row_stride});
  }
}

}  // namespace optimus
