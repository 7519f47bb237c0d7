// Attention with dropout on CUDA, backward: first the gradients of the queries, then those of the keys and
// values, with the scores computed in both. Each sum is kept in the registers of one warp, so results repeat
// exactly, and the workspace has two numbers per query. Read first: cuda_attention_forward.cu.
//
//   probability P = 2^(scale' s - logsumexp')     retained probability R = P, or 0 if dropped
//   delta = sum over d of dout * out              dS = P (dP * dropout scale - delta), dP = 0 where dropped
//   dq = scale * dS k, dk = scale * dSᵀ q, dv = dropout scale * Rᵀ dout, with dP = dout vᵀ
//
// The key kernel multiplies P by the dropout scale in the exponent, and divides delta by it instead.
#include <cmath>

#include "kernels/cuda_attention.cuh"

namespace optimus::cuda {
namespace {

template <int kHeadDim>
struct BackwardShape {
  static constexpr int kRowTiles = kHeadDim == 64 ? 2 : 1;
  // The rows that a block of threads owns (queries, or keys), and the rows that it goes through.
  static constexpr int kOwn = 128, kOther = 64, kWarps = kOwn / (16 * kRowTiles), kThreads = 32 * kWarps;
  static constexpr int kChunk = 32;  // the rows whose scores a warp computes at a time
  static constexpr int kOwnBytes = SharedRows<kHeadDim>::bytes(kOwn),
                       kOtherBytes = SharedRows<kHeadDim>::bytes(kOther);
  static constexpr int kTileBytes = 2 * kOwnBytes + 4 * kOtherBytes;
  // The bits of dropout of two blocks of scores, and delta of the own rows, or of two blocks of the others
  // with logsumexp.
  static constexpr int kBitTiles = kOwn / kDropoutTileKeys * (kOther / kDropoutTileQueries);
  static constexpr int kNumberBytes = 2 * 2 * kOther * 4;
  static constexpr int kSharedBytes = kTileBytes + kNumberBytes + 2 * kBitTiles * kDropoutLanes * 4;
  static_assert(kSharedBytes <= attention_shared_bytes(kHeadDim));
};

// What a warp reads of one head.
template <typename T>
struct HeadTensors {
  const FusedAttentionTask& task;
  std::int64_t sequence;

  __device__ __forceinline__ T* rows(const HeadRows& of, int head, int row) const {
    return static_cast<T*>(of.data) + (sequence * task.length + row) * of.row_stride + head * of.head_stride;
  }
  __device__ __forceinline__ std::int64_t statistics_size() const {
    return task.sequences * task.heads * task.length;
  }
  __device__ __forceinline__ std::int64_t statistics(int head, int row) const {
    return (sequence * task.heads + head) * task.length + row;
  }
};

// a bᵀ for the rows of a warp: the left factors in registers.
template <typename T, int kDim, int kRowTiles, int kTiles>
__device__ __forceinline__ void multiply_rows(const std::uint32_t (&left)[kRowTiles][kDim / 16][4],
                                              const OperandAddress<kDim>& right, int first,
                                              float (&to)[kRowTiles][kTiles][4]) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      std::uint32_t pair[4];
      right.load(pair, step, first + 16 * n);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply_add<T>(to[r][2 * n], left[r][step], pair[0], pair[1]);
        multiply_add<T>(to[r][2 * n + 1], left[r][step], pair[2], pair[3]);
      }
    }
}
// The same with the left factors in shared memory.
template <typename T, int kDim, int kRowTiles, int kTiles>
__device__ __forceinline__ void multiply_rows(const OperandAddress<kDim>& left,
                                              const OperandAddress<kDim>& right, int first,
                                              float (&to)[kRowTiles][kTiles][4]) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    std::uint32_t own[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) left.load(own[r], step, 16 * r);
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      std::uint32_t pair[4];
      right.load(pair, step, first + 16 * n);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply_add<T>(to[r][2 * n], own[r], pair[0], pair[1]);
        multiply_add<T>(to[r][2 * n + 1], own[r], pair[2], pair[3]);
      }
    }
  }
}

// sum += left * rows [row, row + 16) of a tile
template <typename T, int kDim, int kRowTiles>
__device__ __forceinline__ void add_product(const std::uint32_t (&left)[kRowTiles][4],
                                            const OperandAddress<kDim>& right, int row,
                                            float (&sum)[kRowTiles][kDim / 8][4]) {
#pragma unroll
  for (int d = 0; d < kDim / 16; ++d) {
    std::uint32_t pair[4];
    right.load_transposed(pair, d, row);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      multiply_add<T>(sum[r][2 * d], left[r], pair[0], pair[1]);
      multiply_add<T>(sum[r][2 * d + 1], left[r], pair[2], pair[3]);
    }
  }
}

template <int kRowTiles>
struct RowNumbers {
  float at[kRowTiles][2];
};

// The queries of one warp.
template <typename T, int kDim>
struct QueryGradientWarp {
  static constexpr int kRowTiles = BackwardShape<kDim>::kRowTiles;

  std::uint32_t query[kRowTiles][kDim / 16][4], dout[kRowTiles][kDim / 16][4];
  float dq[kRowTiles][kDim / 8][4] = {};
  RowNumbers<kRowTiles> logsumexp, delta;  // logsumexp in powers of two

  // The keys from first_key on, which are rows `first` on of the tiles.
  __device__ __forceinline__ void add_keys(const FusedAttentionTask& task, const HeadDropout& dropout,
                                           const OperandAddress<kDim>& keys,
                                           const OperandAddress<kDim>& values,
                                           const OperandAddress<kDim>& key_rows, int first, int first_row,
                                           int first_key) {
    float score[kRowTiles][4][4] = {}, gradient[kRowTiles][4][4] = {};
    multiply_rows<T>(query, keys, first, score);
    multiply_rows<T>(dout, values, first, gradient);
    const int lane = threadIdx.x % 32;
    const float scale = task.scale * kLog2E;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          score[r][n][i] = power_of_two(score[r][n][i] * scale - logsumexp.at[r][i / 2]);
    if (first_key + 32 > task.length || (task.is_causal && first_key + 32 > first_row + 1))
      hide(score, task, first_row, first_key);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const RetainedBits bits = dropout(first_row / 16 + r, first_key / kDropoutTileKeys, lane);
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float dp = gradient[r][n][i];
          dp = retained_or_zero(dp, bits.word[i % 2 * 2 + i / 2], n);
          gradient[r][n][i] = score[r][n][i] * (dp * dropout.scale - delta.at[r][i / 2]);
        }
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t left[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = &gradient[r][2 * step + i / 2][i % 2 * 2];
          left[r][i] = packed<T>(pair[0], pair[1]);
        }
      add_product<T, kDim, kRowTiles>(left, key_rows, first + 16 * step, dq);
    }
  }

  __device__ __forceinline__ void hide(float (&probability)[kRowTiles][4][4], const FusedAttentionTask& task,
                                       int first_row, int first_key) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      const int row = first_row + 8 * r + lane / 4;
      const int end = task.is_causal ? min(task.length, row + 1) : task.length;
      const int first_hidden = end - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * n + i >= first_hidden) probability[r / 2][n][r % 2 * 2 + i] = 0;
    }
  }
};

// delta of the block's rows, to shared memory, and the row numbers of the key kernel to the workspace. The
// rows of dout are in shared memory.
template <typename T, int kDim>
__device__ __forceinline__ void compute_delta(const HeadTensors<T>& tensors, int head, int first_row,
                                              std::uint32_t dout_tile, float dropout_scale, float* delta) {
  const int row = static_cast<int>(threadIdx.x);
  if (row >= BackwardShape<kDim>::kOwn) return;
  float sum = 0;
  if (first_row + row < tensors.task.length) {
    const T* out = tensors.rows(tensors.task.out, head, first_row + row);
#pragma unroll
    for (int chunk = 0; chunk < kDim / 8; ++chunk) {
      const uint4 a = *reinterpret_cast<const uint4*>(out + chunk * 8);
      uint4 b;
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(b.x), "=r"(b.y), "=r"(b.z), "=r"(b.w)
                   : "r"(dout_tile + SharedRows<kDim>::offset(row, chunk)));
      const std::uint32_t left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpacked<T>(left[i]), y = unpacked<T>(right[i]);
        sum += x.x * y.x + x.y * y.y;
      }
    }
    const std::int64_t at = tensors.statistics(head, first_row + row);
    tensors.task.workspace[at] = tensors.task.logsumexp[at] * kLog2E - log2f(dropout_scale);
    tensors.task.workspace[tensors.statistics_size() + at] = sum / dropout_scale;
  }
  delta[row] = sum;
}

template <typename T, int kDim>
__global__ void __launch_bounds__(BackwardShape<kDim>::kThreads, kDim == 64 ? 2 : 1)
    query_gradient_kernel(const __grid_constant__ FusedAttentionTask task) {
  using Sizes = BackwardShape<kDim>;
  using Rows = SharedRows<kDim>;
  constexpr int kRowTiles = Sizes::kRowTiles, kWarpRows = 16 * kRowTiles, kThreads = Sizes::kThreads;
  extern __shared__ __align__(1024) unsigned char shared[];
  const std::uint32_t query_tile = shared_address(shared), dout_tile = query_tile + Sizes::kOwnBytes,
                      key_tiles = dout_tile + Sizes::kOwnBytes,
                      value_tiles = key_tiles + 2 * Sizes::kOtherBytes;
  float* const delta = reinterpret_cast<float*>(shared + Sizes::kTileBytes);
  const int num_blocks = (task.length + Sizes::kOwn - 1) / Sizes::kOwn;
  const int block = num_blocks - 1 - static_cast<int>(blockIdx.x % static_cast<unsigned>(num_blocks));
  const unsigned of_head = blockIdx.x / static_cast<unsigned>(num_blocks);
  const int head = static_cast<int>(of_head % static_cast<unsigned>(task.heads));
  const HeadTensors<T> tensors{task, of_head / static_cast<unsigned>(task.heads)};
  const int kv_head = head / (task.heads / task.kv_heads), first_query = block * Sizes::kOwn;
  using Copy = RowCopy<T, kDim, kThreads>;
  const Copy all_keys(tensors.rows(task.k, kv_head, 0), task.k.row_stride),
      all_values(tensors.rows(task.v, kv_head, 0), task.v.row_stride);
  const auto load_keys = [&](int index) {
    const int first = index * Sizes::kOther, stage = index % 2 * Sizes::kOtherBytes;
    all_keys.template load<Sizes::kOther>(key_tiles + stage, first, task.length);
    all_values.template load<Sizes::kOther>(value_tiles + stage, first, task.length);
    commit_copies();
  };
  Copy(tensors.rows(task.q, head, 0), task.q.row_stride)
      .template load<Sizes::kOwn>(query_tile, first_query, task.length);
  Copy(tensors.rows(task.dout, head, 0), task.dout.row_stride)
      .template load<Sizes::kOwn>(dout_tile, first_query, task.length);
  load_keys(0);
  const HeadDropout dropout(task, tensors.sequence, head);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int warp_query = first_query + warp * kWarpRows;
  const int end = task.is_causal ? min(task.length, first_query + Sizes::kOwn) : task.length;
  const int warp_end = task.is_causal ? min(task.length, warp_query + kWarpRows) : task.length;
  const int num_key_blocks = (end + Sizes::kOther - 1) / Sizes::kOther;
  const auto keys = OperandAddress<kDim>::of_columns(key_tiles, lane),
             values = OperandAddress<kDim>::of_columns(value_tiles, lane),
             key_rows = OperandAddress<kDim>::of_rows(key_tiles, 0, lane);
  wait_for_copies();
  __syncthreads();
  compute_delta<T, kDim>(tensors, head, first_query, dout_tile, dropout.scale, delta);
  __syncthreads();
  QueryGradientWarp<T, kDim> state;
  const auto queries = OperandAddress<kDim>::of_rows(query_tile, warp * kWarpRows, lane),
             douts = OperandAddress<kDim>::of_rows(dout_tile, warp * kWarpRows, lane);
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      queries.load(state.query[r][step], step, 16 * r), douts.load(state.dout[r][step], step, 16 * r);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp * kWarpRows + 16 * r + 8 * i + lane / 4;
      const bool is_inside = first_query + row < task.length;
      state.logsumexp.at[r][i] =
          is_inside ? task.logsumexp[tensors.statistics(head, first_query + row)] * kLog2E : INFINITY;
      state.delta.at[r][i] = delta[row];
    }
  }
  for (int index = 0; index < num_key_blocks; ++index) {
    if (index > 0) {  // also: all warps are done with the block before
      wait_for_copies();
      __syncthreads();
    }
    if (index + 1 < num_key_blocks) load_keys(index + 1);
    const int stage = index % 2 * Sizes::kOtherBytes;
#pragma unroll 1
    for (int first = 0; first < Sizes::kOther; first += Sizes::kChunk) {
      const int first_key = index * Sizes::kOther + first;
      if (first_key >= warp_end) break;
      const int at = stage + Rows::bytes(first);
      state.add_keys(task, dropout, keys + at, values + at, key_rows + at, 0, warp_query, first_key);
    }
  }
  float factors[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) factors[r][0] = factors[r][1] = task.scale;
  store_rows<T, kDim, kRowTiles>(state.dq, factors, query_tile + Rows::bytes(warp * kWarpRows),
                                 tensors.rows(task.dq, head, warp_query), task.dq.row_stride,
                                 task.length - warp_query);
}

// The keys of one warp. Scores are transposed: keys x queries.
template <typename T, int kDim>
struct KeyGradientWarp {
  static constexpr int kRowTiles = BackwardShape<kDim>::kRowTiles;
  static constexpr int kChunk = BackwardShape<kDim>::kChunk;
  using Scores = float[kRowTiles][kChunk / 8][4];

  float dk[kRowTiles][kDim / 8][4] = {}, dv[kRowTiles][kDim / 8][4] = {};

  // 32 queries from first_query on, the first rows of the tiles. `logsumexp` and `delta` are theirs.
  __device__ __forceinline__ void add_queries(const FusedAttentionTask& task, const std::uint32_t* bits,
                                              const OperandAddress<kDim> (&own)[2],
                                              const OperandAddress<kDim> (&queries)[2],
                                              const OperandAddress<kDim> (&douts)[2], const float* offsets,
                                              const float* delta, int first_key, int first_query) {
    Scores score = {}, gradient = {};
    multiply_rows<T>(own[0], queries[0], 0, score);
    exponentiate(score, offsets, task.scale * kLog2E);
    if (task.is_causal && first_query < first_key + 16 * kRowTiles - 1) hide(score, first_key - first_query);
    multiply_rows<T>(own[1], douts[0], 0, gradient);
#pragma unroll
    for (int half = 0; half < kChunk / 16; ++half) {
      std::uint32_t probability[kRowTiles][4], dscore[kRowTiles][4];
      const TransposedBits retained(bits + 4 * half * kDropoutLanes, threadIdx.x % 32,
                                    kRowTiles == 1 ? first_key % kDropoutTileKeys : 0);
      compute_gradients(retained, score, gradient, delta + 16 * half, half, probability, dscore);
      add_product<T, kDim, kRowTiles>(probability, douts[1], 16 * half, dv);
      add_product<T, kDim, kRowTiles>(dscore, queries[1], 16 * half, dk);
    }
  }

 private:
  static __device__ __forceinline__ void exponentiate(Scores& score, const float* offsets, float scale) {
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      const float2 of_queries = *reinterpret_cast<const float2*>(offsets + 8 * n + threadIdx.x % 4 * 2);
      const float offset[2] = {of_queries.x, of_queries.y};
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) score[r][n][i] = power_of_two(score[r][n][i] * scale - offset[i % 2]);
    }
  }
  // Hides the queries before their key. `distance`: of the first key from the first query.
  static __device__ __forceinline__ void hide(Scores& probability, int distance) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      const int first_seen = distance + 8 * r + lane / 4 - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * n + i < first_seen) probability[r / 2][n][r % 2 * 2 + i] = 0;
    }
  }
  // The left factors of the products with 16 queries: columns 16 * half .. of the scores.
  static __device__ __forceinline__ void compute_gradients(const TransposedBits& bits, const Scores& score,
                                                           const Scores& gradient, const float* delta,
                                                           int half,
                                                           std::uint32_t (&probability)[kRowTiles][4],
                                                           std::uint32_t (&dscore)[kRowTiles][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 of_queries = *reinterpret_cast<const float2*>(delta + 8 * h + lane % 4 * 2);
      const float of_delta[2] = {of_queries.x, of_queries.y};
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int byte = 2 * r + i;
          float retained[2], ds[2];
#pragma unroll
          for (int q = 0; q < 2; ++q) {
            const float p = score[r][2 * half + h][2 * i + q], dp = gradient[r][2 * half + h][2 * i + q];
            retained[q] = retained_or_zero(p, bits.query[q][h], byte);
            ds[q] = retained[q] * dp - p * of_delta[q];
          }
          probability[r][2 * h + i] = packed<T>(retained[0], retained[1]);
          dscore[r][2 * h + i] = packed<T>(ds[0], ds[1]);
        }
    }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(BackwardShape<kDim>::kThreads, kDim == 64 ? 2 : 1)
    key_gradient_kernel(const __grid_constant__ FusedAttentionTask task) {
  using Sizes = BackwardShape<kDim>;
  using Rows = SharedRows<kDim>;
  constexpr int kRowTiles = Sizes::kRowTiles, kWarpRows = 16 * kRowTiles, kThreads = Sizes::kThreads;
  extern __shared__ __align__(1024) unsigned char shared[];
  const std::uint32_t key_tile = shared_address(shared), value_tile = key_tile + Sizes::kOwnBytes,
                      query_tiles = value_tile + Sizes::kOwnBytes,
                      dout_tiles = query_tiles + 2 * Sizes::kOtherBytes;
  float* const numbers = reinterpret_cast<float*>(shared + Sizes::kTileBytes);  // [stage][2][kOther]
  // [stage][tile of queries][tile of keys][lane]
  std::uint32_t* const bits =
      reinterpret_cast<std::uint32_t*>(shared + Sizes::kTileBytes + Sizes::kNumberBytes);
  const int num_blocks = (task.length + Sizes::kOwn - 1) / Sizes::kOwn;
  const int block = static_cast<int>(blockIdx.x % static_cast<unsigned>(num_blocks));
  const unsigned of_head = blockIdx.x / static_cast<unsigned>(num_blocks);
  const int kv_head = static_cast<int>(of_head % static_cast<unsigned>(task.kv_heads));
  const HeadTensors<T> tensors{task, of_head / static_cast<unsigned>(task.kv_heads)};
  const int group = task.heads / task.kv_heads, first_key = block * Sizes::kOwn;
  const int first_block = task.is_causal ? first_key / Sizes::kOther : 0;
  const int end_block = (task.length + Sizes::kOther - 1) / Sizes::kOther;
  using Copy = RowCopy<T, kDim, kThreads>;
  const auto load_queries = [&](int member, int query_block, int stage) {
    const int first = query_block * Sizes::kOther, head = kv_head * group + member;
    Copy(tensors.rows(task.q, head, 0), task.q.row_stride)
        .template load<Sizes::kOther>(query_tiles + stage * Sizes::kOtherBytes, first, task.length);
    Copy(tensors.rows(task.dout, head, 0), task.dout.row_stride)
        .template load<Sizes::kOther>(dout_tiles + stage * Sizes::kOtherBytes, first, task.length);
    if (threadIdx.x < 2 * Sizes::kOther) {
      const int row = static_cast<int>(threadIdx.x) % Sizes::kOther;
      const bool is_delta = threadIdx.x >= Sizes::kOther;
      float* const to = numbers + stage * 2 * Sizes::kOther + threadIdx.x;
      const std::int64_t from = tensors.statistics(head, first + row);
      // Probability 0 for queries after the end.
      if (first + row >= task.length)
        *to = is_delta ? 0 : INFINITY;
      else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)),
                     "l"(task.workspace + (is_delta ? tensors.statistics_size() : 0) + from));
    }
    commit_copies();
  };
  Copy(tensors.rows(task.k, kv_head, 0), task.k.row_stride)
      .template load<Sizes::kOwn>(key_tile, first_key, task.length);
  Copy(tensors.rows(task.v, kv_head, 0), task.v.row_stride)
      .template load<Sizes::kOwn>(value_tile, first_key, task.length);
  load_queries(0, first_block, 0);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int warp_key = first_key + warp * kWarpRows, own_bytes = Rows::bytes(warp * kWarpRows);
  using Address = OperandAddress<kDim>;
  const Address own[2] = {Address::of_rows(key_tile, warp * kWarpRows, lane),
                          Address::of_rows(value_tile, warp * kWarpRows, lane)};
  // Draws the bits of the scores of a block of queries; each warp draws some tiles.
  const auto draw = [&](const HeadDropout& dropout, int first_query, std::uint32_t* to) {
#pragma unroll
    for (int i = 0; i < Sizes::kBitTiles / Sizes::kWarps; ++i) {
      const int tile = warp + i * Sizes::kWarps;
      const int query = first_query + tile / 4 * kDropoutTileQueries,
                key = first_key + tile % 4 * kDropoutTileKeys;
      if (task.is_causal && query + kDropoutTileQueries <= key) continue;
      to[tile * kDropoutLanes + lane] =
          gathered(dropout(query / kDropoutTileQueries, key / kDropoutTileKeys, lane));
    }
  };
  KeyGradientWarp<T, kDim> state;
  int index = 0;
  for (int member = 0; member < group; ++member) {
    const HeadDropout dropout(task, tensors.sequence, kv_head * group + member);
    for (int query_block = first_block; query_block < end_block; ++query_block, ++index) {
      const int stage = index % 2;
      std::uint32_t* const stage_bits = bits + stage * Sizes::kBitTiles * kDropoutLanes;
      draw(dropout, query_block * Sizes::kOther, stage_bits);
      wait_for_copies();
      __syncthreads();  // also: all warps are done with the block before
      const bool is_last = query_block + 1 == end_block;
      if (!is_last || member + 1 < group)
        load_queries(is_last ? member + 1 : member, is_last ? first_block : query_block + 1, stage ^ 1);
#pragma unroll 1
      for (int first = 0; first < Sizes::kOther; first += Sizes::kChunk) {
        const int first_query = query_block * Sizes::kOther + first;
        if (task.is_causal && first_query + Sizes::kChunk <= warp_key) continue;
        const int at = stage * Sizes::kOtherBytes + Rows::bytes(first);
        const Address queries[2] = {Address::of_columns(query_tiles + at, lane),
                                    Address::of_rows(query_tiles + at, 0, lane)},
                      douts[2] = {Address::of_columns(dout_tiles + at, lane),
                                  Address::of_rows(dout_tiles + at, 0, lane)};
        const float* const of_queries = numbers + stage * 2 * Sizes::kOther + first;
        const std::uint32_t* const of_keys =
            stage_bits + (first / 16 * 4 + (warp_key - first_key) / kDropoutTileKeys) * kDropoutLanes;
        state.add_queries(task, of_keys, own, queries, douts, of_queries, of_queries + Sizes::kOther,
                          warp_key, first_query);
      }
    }
  }
  float key_factors[kRowTiles][2], value_factors[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < 2 * kRowTiles; ++r)
    key_factors[r / 2][r % 2] = task.scale, value_factors[r / 2][r % 2] = 1;
  const int num_valid = task.length - warp_key;
  store_rows<T, kDim, kRowTiles>(state.dk, key_factors, key_tile + own_bytes,
                                 tensors.rows(task.dk, kv_head, warp_key), task.dk.row_stride, num_valid);
  store_rows<T, kDim, kRowTiles>(state.dv, value_factors, value_tile + own_bytes,
                                 tensors.rows(task.dv, kv_head, warp_key), task.dv.row_stride, num_valid);
}

template <typename Sizes>
void launch(void (*kernel)(FusedAttentionTask), const Queue& queue, const FusedAttentionTask& task,
            std::int64_t heads) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes);
  const std::int64_t blocks = (task.length + Sizes::kOwn - 1) / Sizes::kOwn * task.sequences * heads;
  kernel<<<static_cast<unsigned>(blocks), Sizes::kThreads, Sizes::kSharedBytes, queue.stream>>>(task);
}
template <typename T, int kDim>
void launch_backward(const Queue& queue, const FusedAttentionTask& task) {
  launch<BackwardShape<kDim>>(query_gradient_kernel<T, kDim>, queue, task, task.heads);
  launch<BackwardShape<kDim>>(key_gradient_kernel<T, kDim>, queue, task, task.kv_heads);
}

}  // namespace

void fused_attention_backward(const Queue& queue, const FusedAttentionTask& task) {
  if (task.sequences * task.length * task.heads == 0) return;
  const bool is_bf16 = task.element == Element::bf16;
  if (task.head_dim == 64)
    return is_bf16 ? launch_backward<__nv_bfloat16, 64>(queue, task)
                   : launch_backward<__half, 64>(queue, task);
  return is_bf16 ? launch_backward<__nv_bfloat16, 128>(queue, task)
                 : launch_backward<__half, 128>(queue, task);
}

}  // namespace optimus::cuda
