// Embedding tables and rotary positions on CUDA. The gradient of a table is summed in token order without
// atomics. cuda.cpp sorts the rows by id, and each block sums one piece of the sorted rows. A second kernel
// sums the ids whose rows span several pieces.
#include "kernels/cuda_math.cuh"

namespace optimus::cuda {
namespace {

// Traps, like ATen does, because an id outside its table is an internal error and would access arbitrary
// memory.
__device__ __forceinline__ void check(bool is_inside) {
  if (!is_inside) __trap();
}

template <typename T>
struct RopeArguments {
  T* x;
  std::int64_t row_stride, head_stride, num_rows, num_positions;
  const Wide<T>*cosine, *sine;
  const std::int32_t* positions;
  int num_heads, num_packs;  // packs per half head
  Wide<T> direction;
};

template <typename T, int kPack>
__global__ void __launch_bounds__(256) rope_kernel(RopeArguments<T> of) {
  const int half = of.num_packs * kPack;
  for_each_position(of.num_rows, static_cast<std::int64_t>(of.num_heads) * of.num_packs,
                    [&](std::int64_t row, std::int64_t column) {
                      const int head = static_cast<int>(column) / of.num_packs,
                                at = (static_cast<int>(column) - head * of.num_packs) * kPack;
                      const std::int64_t position = of.positions[row];
                      check(position >= 0 && position < of.num_positions);
                      Wide<T> cosine[kPack], sine[kPack];
                      load_wide(of.cosine + position * half + at, cosine);
                      load_wide(of.sine + position * half + at, sine);
                      T* first = of.x + row * of.row_stride + head * of.head_stride + at;
                      Values<T, kPack> a, b;
                      a.load(first), b.load(first + half);
#pragma unroll
                      for (int i = 0; i < kPack; ++i) {
                        const Wide<T> signed_sine = of.direction * sine[i], before = a.at[i];
                        a.at[i] = before * cosine[i] - b.at[i] * signed_sine;
                        b.at[i] = b.at[i] * cosine[i] + before * signed_sine;
                      }
                      a.store(first), b.store(first + half);
                    });
}

template <typename T>
struct EmbeddingArguments {
  const std::int64_t* ids;
  const std::int32_t* position_ids;
  RowsOf<T> tokens, positions, types, out;
  std::int64_t num_tokens, num_positions;
};

template <typename T, int kPack>
__global__ void __launch_bounds__(256)
    embedding_kernel(EmbeddingArguments<T> of, std::int64_t num_rows, std::int64_t num_packs) {
  for_each_position(num_rows, num_packs, [&](std::int64_t row, std::int64_t column) {
    const std::int64_t id = of.ids[row], at = column * kPack;
    check(id < of.num_tokens);
    Values<T, kPack> sum, addend;
    if (id >= 0) {
      sum.load(of.tokens.row(id) + at);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum.at[i] = 0;
    }
    if (of.positions.data != nullptr) {
      const std::int64_t position = of.position_ids[row];
      check(position >= 0 && position < of.num_positions);
      addend.load(of.positions.row(position) + at);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum.at[i] += addend.at[i];
    }
    if (of.types.data != nullptr) {
      addend.load(of.types.data + at);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum.at[i] += addend.at[i];
    }
    sum.store(of.out.row(row) + at);
  });
}

constexpr int kPieceRows = 64;  // number of sorted rows that a block sums

template <typename T>
struct ScatterArguments {
  RowsOf<T> values;
  RowsOf<Wide<T>> table;
  const std::int64_t *sorted, *order;
  // [pieces, 2, width]: sums of the id whose rows begin before the piece, and of the id whose rows continue
  // after it
  Wide<T>* workspace;
  std::int64_t num_rows, table_rows;
};

template <typename W, int kPack>
__device__ __forceinline__ void add_to(W* target, const W (&sum)[kPack]) {
  W total[kPack];
  load_wide(target, total);
#pragma unroll
  for (int i = 0; i < kPack; ++i) total[i] += sum[i];
  store_wide(target, total);
}

// Sums one piece of sorted rows. If all rows of an id are in the piece, the id's sum is added to the table.
// The sums of the first and the last id go to the workspace if adjacent pieces also have rows of these ids.
// An id that fills the whole piece and continues on both sides is treated as one that begins before the
// piece.
template <typename T, int kPack>
__global__ void __launch_bounds__(256) scatter_kernel(ScatterArguments<T> of, std::int64_t num_packs) {
  using W = Wide<T>;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x,
                     piece = blockIdx.x;
  if (column >= num_packs) return;
  const std::int64_t begin = piece * kPieceRows, end = min(of.num_rows, begin + kPieceRows),
                     width = num_packs * kPack;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t id = of.sorted[i], first = i;
    check(id < of.table_rows);
    W sum[kPack] = {};
#pragma unroll 4
    for (; i < end && of.sorted[i] == id; ++i) {
      Values<T, kPack> values;
      values.load(of.values.row(of.order[i]) + column * kPack);
#pragma unroll
      for (int k = 0; k < kPack; ++k) sum[k] += values.at[k];
    }
    const bool began_before = first == begin && begin > 0 && of.sorted[begin - 1] == id;
    const bool continues_after = i == end && end < of.num_rows && of.sorted[end] == id;
    if (began_before || continues_after)
      store_wide(of.workspace + (piece * 2 + (began_before ? 0 : 1)) * width + column * kPack, sum);
    else if (id >= 0)
      add_to(of.table.row(id) + column * kPack, sum);
  }
}

// Adds up the partial sums of an id that begins in a piece and continues after it, in the order of pieces,
// and adds the total to the table.
template <typename T, int kPack>
__global__ void __launch_bounds__(256)
    scatter_spanning_kernel(ScatterArguments<T> of, std::int64_t num_packs) {
  using W = Wide<T>;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x,
                     piece = blockIdx.x;
  const std::int64_t begin = piece * kPieceRows, end = begin + kPieceRows, width = num_packs * kPack;
  if (column >= num_packs || end >= of.num_rows) return;
  const std::int64_t id = of.sorted[end];
  if (id < 0 || of.sorted[end - 1] != id) return;
  if (begin > 0 && of.sorted[begin] == id && of.sorted[begin - 1] == id) return;  // begins before this piece
  W sum[kPack], addend[kPack];
  load_wide(of.workspace + (piece * 2 + 1) * width + column * kPack, sum);
  for (std::int64_t next = piece + 1; next * kPieceRows < of.num_rows && of.sorted[next * kPieceRows] == id;
       ++next) {
    load_wide(of.workspace + next * 2 * width + column * kPack, addend);
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum[k] += addend[k];
  }
  add_to(of.table.row(id) + column * kPack, sum);
}

}  // namespace

void rope(const Queue& queue, const RopeTask& task) {
  const Rows& x = task.x;
  if (x.num_rows == 0 || x.width == 0) return;
  Rows halves = x;
  halves.width /= 2;
  const bool is_packed =
      has_packs(halves, size_of(task.element)) && is_aligned(task.cosine, 16) && is_aligned(task.sine, 16);
  with_pack(task.element, is_packed, [&](auto zero, auto pack) {
    using T = decltype(zero);
    const RopeArguments<T> of{static_cast<T*>(x.data),
                              x.outer_stride,
                              x.inner_stride,
                              x.num_rows / x.num_inner,
                              task.num_positions,
                              static_cast<const Wide<T>*>(task.cosine),
                              static_cast<const Wide<T>*>(task.sine),
                              task.positions,
                              static_cast<int>(x.num_inner),
                              static_cast<int>(halves.width / pack()),
                              static_cast<Wide<T>>(task.is_backward ? -1 : 1)};
    const PlaneShape shape = plane_shape(of.num_rows, static_cast<std::int64_t>(of.num_heads) * of.num_packs);
    rope_kernel<T, pack()><<<shape.blocks, shape.threads, 0, queue.stream>>>(of);
  });
}

void embedding(const Queue& queue, const EmbeddingTask& task) {
  if (task.out.num_rows == 0 || task.out.width == 0) return;
  const bool is_packed =
      all_have_packs(size_of(task.element), task.tokens, task.positions, task.types, task.out);
  with_pack(task.element, is_packed, [&](auto zero, auto pack) {
    using T = decltype(zero);
    const EmbeddingArguments<T> of{task.ids,
                                   task.position_ids,
                                   RowsOf<T>(task.tokens),
                                   RowsOf<T>(task.positions),
                                   RowsOf<T>(task.types),
                                   RowsOf<T>(task.out),
                                   task.tokens.num_rows,
                                   task.positions.num_rows};
    const std::int64_t num_packs = task.out.width / pack();
    const PlaneShape shape = plane_shape(task.out.num_rows, num_packs);
    embedding_kernel<T, pack()>
        <<<shape.blocks, shape.threads, 0, queue.stream>>>(of, task.out.num_rows, num_packs);
  });
}

std::int64_t scatter_pieces(std::int64_t num_rows) { return (num_rows + kPieceRows - 1) / kPieceRows; }

void add_to_table(const Queue& queue, const ScatterTask& task) {
  const Rows& values = task.values;
  if (values.num_rows == 0 || values.width == 0) return;
  const int wide_size = task.element == Element::fp64 ? 8 : 4;
  const bool is_packed = has_packs(values, size_of(task.element)) && has_packs(task.table, wide_size) &&
                         is_aligned(task.workspace, 16);
  with_pack(task.element, is_packed, [&](auto zero, auto pack) {
    using T = decltype(zero);
    const ScatterArguments<T> of{RowsOf<T>(values),  RowsOf<Wide<T>>(task.table),           task.sorted,
                                 task.order,         static_cast<Wide<T>*>(task.workspace), values.num_rows,
                                 task.table.num_rows};
    const std::int64_t num_packs = values.width / pack();
    const auto threads = static_cast<unsigned>(std::min<std::int64_t>(128, (num_packs + 31) / 32 * 32));
    const dim3 blocks(static_cast<unsigned>(scatter_pieces(values.num_rows)),
                      static_cast<unsigned>((num_packs + threads - 1) / threads));
    scatter_kernel<T, pack()><<<blocks, threads, 0, queue.stream>>>(of, num_packs);
    scatter_spanning_kernel<T, pack()><<<blocks, threads, 0, queue.stream>>>(of, num_packs);
  });
}

}  // namespace optimus::cuda
