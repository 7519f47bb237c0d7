// Attention with dropout on CUDA, forward. A block of threads computes 128 queries of one head: each warp
// has 16 or 32 of them and goes through the keys in blocks of 64, with the largest score and the sum of
// exponentials so far (online softmax). The keys and values of the next block are copied to shared memory
// meanwhile. Read first: cuda_attention.cuh.
#include <cmath>

#include "kernels/cuda_attention.cuh"

namespace optimus::cuda {
namespace {

template <int kHeadDim>
struct ForwardShape {
  // Rows per warp: more of them use each key that is loaded from shared memory more often.
  static constexpr int kRowTiles = kHeadDim == 64 ? 2 : 1;
  static constexpr int kQueries = 128, kKeys = 64, kWarps = kQueries / (16 * kRowTiles),
                       kThreads = 32 * kWarps;
  static constexpr int kQueryBytes = SharedRows<kHeadDim>::bytes(kQueries),
                       kKeyBytes = SharedRows<kHeadDim>::bytes(kKeys);
  static constexpr int kSharedBytes = kQueryBytes + 4 * kKeyBytes;  // two blocks of keys and values
};

// The queries of one warp.
template <typename T, int kDim>
struct ForwardWarp {
  static constexpr int kRowTiles = ForwardShape<kDim>::kRowTiles, kKeys = ForwardShape<kDim>::kKeys;
  static constexpr float kMaxExponent = 8;
  using Scores = float[kRowTiles][kKeys / 8][4];

  std::uint32_t query[kRowTiles][kDim / 16][4];
  float out[kRowTiles][kDim / 8][4] = {};
  float maximum[kRowTiles][2], sum[kRowTiles][2] = {};

  __device__ __forceinline__ explicit ForwardWarp(const OperandAddress<kDim>& queries) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      maximum[r][0] = maximum[r][1] = -INFINITY;
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step) queries.load(query[r][step], step, 16 * r);
    }
  }

  __device__ __forceinline__ void compute_scores(const OperandAddress<kDim>& keys, Scores& scores) const {
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        std::uint32_t key[4];
        keys.load(key, step, 16 * n);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply_add<T>(scores[r][2 * n], query[r][step], key[0], key[1]);
          multiply_add<T>(scores[r][2 * n + 1], query[r][step], key[2], key[3]);
        }
      }
  }

  // Hides the keys from `first_hidden` of the row on: relative to the lane's first key.
  __device__ __forceinline__ void hide(Scores& scores, int first_row, int first_key, int length,
                                       bool is_causal) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      const int row = first_row + 8 * r + lane / 4, end = is_causal ? min(length, row + 1) : length;
      const int first_hidden = end - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * n + i >= first_hidden) scores[r / 2][n][r % 2 * 2 + i] = -INFINITY;
    }
  }

  // Replaces scores by 2^(score * scale) relative to `maximum`, which is the largest score so far, or an
  // earlier one that is not much smaller: the sums are rarely rescaled.
  __device__ __forceinline__ void exponentiate(Scores& scores, float scale) {
    bool is_larger = false;
    float now[kRowTiles][2];
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      float& largest = now[r / 2][r % 2];
      largest = fmaxf(scores[r / 2][0][r % 2 * 2], scores[r / 2][0][r % 2 * 2 + 1]);
#pragma unroll
      for (int n = 1; n < kKeys / 8; ++n) {
        const float* pair = &scores[r / 2][n][r % 2 * 2];
        largest = fmaxf(largest, fmaxf(pair[0], pair[1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      is_larger = is_larger || (largest - maximum[r / 2][r % 2]) * scale > kMaxExponent;
    }
    if (__any_sync(0xffffffffu, is_larger)) raise_maximum(now, scale);
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      const float offset = maximum[r / 2][r % 2] * scale;
      float& total = sum[r / 2][r % 2];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        float* pair = &scores[r / 2][n][r % 2 * 2];
        pair[0] = power_of_two(pair[0] * scale - offset), pair[1] = power_of_two(pair[1] * scale - offset);
        total += pair[0] + pair[1];
      }
    }
  }
  __device__ __forceinline__ void raise_maximum(const float (&now)[kRowTiles][2], float scale) {
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      float& largest = maximum[r / 2][r % 2];
      const float before = largest;
      largest = fmaxf(before, now[r / 2][r % 2]);
      const float shrink = power_of_two((before - largest) * scale);
      sum[r / 2][r % 2] *= shrink;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) out[r / 2][n][r % 2 * 2 + i] *= shrink;
    }
  }

  // out += retained probabilities * values
  __device__ __forceinline__ void add_values(const Scores& scores, const OperandAddress<kDim>& values,
                                             const HeadDropout& dropout, int first_row, int first_key) {
#pragma unroll
    for (int tile = 0; tile < kKeys / kDropoutTileKeys; ++tile) {
      RetainedBits bits[kRowTiles];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        bits[r] = dropout(first_row / 16 + r, first_key / kDropoutTileKeys + tile, threadIdx.x % 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int step = 2 * tile + half;  // 16 keys
        std::uint32_t probability[kRowTiles][4];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* pair = &scores[r][2 * step + i / 2][i % 2 * 2];
            probability[r][i] = packed<T>(pair[0], pair[1]);
            probability[r][i] &= pair_mask(bits[r].word[i % 2], bits[r].word[2 + i % 2], 2 * half + i / 2);
          }
#pragma unroll
        for (int d = 0; d < kDim / 16; ++d) {
          std::uint32_t value[4];
          values.load_transposed(value, d, 16 * step);
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            multiply_add<T>(out[r][2 * d], probability[r], value[0], value[1]);
            multiply_add<T>(out[r][2 * d + 1], probability[r], value[2], value[3]);
          }
        }
      }
    }
  }

  // Writes logsumexp of the rows, and returns the factors of the output.
  __device__ __forceinline__ void finish(float (&factors)[kRowTiles][2], float* logsumexp, int num_valid,
                                         float scale, float dropout_scale) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      float total = sum[r / 2][r % 2];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      factors[r / 2][r % 2] = dropout_scale / total;
      const int row = 8 * r + lane / 4;
      if (lane % 4 == 0 && row < num_valid) logsumexp[row] = maximum[r / 2][r % 2] * scale + logf(total);
    }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(ForwardShape<kDim>::kThreads, kDim == 64 ? 2 : 1)
    forward_kernel(const __grid_constant__ FusedAttentionTask task) {
  using Sizes = ForwardShape<kDim>;
  using Rows = SharedRows<kDim>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const std::uint32_t query_tile = shared_address(shared), key_tiles = query_tile + Sizes::kQueryBytes,
                      value_tiles = key_tiles + 2 * Sizes::kKeyBytes;
  const int num_blocks = (task.length + Sizes::kQueries - 1) / Sizes::kQueries;
  // The last queries of a causal head have the most keys, so they begin first.
  const int block = num_blocks - 1 - static_cast<int>(blockIdx.x % static_cast<unsigned>(num_blocks));
  const unsigned of_head = blockIdx.x / static_cast<unsigned>(num_blocks);
  const int head = static_cast<int>(of_head % static_cast<unsigned>(task.heads));
  const std::int64_t sequence = of_head / static_cast<unsigned>(task.heads);
  const int kv_head = head / (task.heads / task.kv_heads), first_query = block * Sizes::kQueries;
  const std::int64_t first_row = sequence * task.length;
  const auto rows_of = [&](const HeadRows& rows, int which, int row) {
    return static_cast<T*>(rows.data) + (first_row + row) * rows.row_stride + which * rows.head_stride;
  };
  using Copy = RowCopy<T, kDim, Sizes::kThreads>;
  const Copy all_keys(rows_of(task.k, kv_head, 0), task.k.row_stride),
      all_values(rows_of(task.v, kv_head, 0), task.v.row_stride);
  const auto load_keys = [&](int index) {
    const int first = index * Sizes::kKeys, stage = index % 2 * Sizes::kKeyBytes;
    all_keys.template load<Sizes::kKeys>(key_tiles + stage, first, task.length);
    all_values.template load<Sizes::kKeys>(value_tiles + stage, first, task.length);
    commit_copies();
  };
  Copy(rows_of(task.q, head, 0), task.q.row_stride)
      .template load<Sizes::kQueries>(query_tile, first_query, task.length);
  load_keys(0);
  const HeadDropout dropout(task, sequence, head);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  constexpr int kRowTiles = Sizes::kRowTiles, kWarpRows = 16 * kRowTiles;
  const int warp_query = first_query + warp * kWarpRows;  // the warp's first query
  const int end = task.is_causal ? min(task.length, first_query + Sizes::kQueries) : task.length;
  const int warp_end = task.is_causal ? min(task.length, warp_query + kWarpRows) : task.length;
  const int num_key_blocks = (end + Sizes::kKeys - 1) / Sizes::kKeys;
  const OperandAddress<kDim> keys = OperandAddress<kDim>::of_columns(key_tiles, lane),
                             values = OperandAddress<kDim>::of_rows(value_tiles, 0, lane);
  wait_for_copies();
  __syncthreads();
  ForwardWarp<T, kDim> state(OperandAddress<kDim>::of_rows(query_tile, warp * kWarpRows, lane));
  for (int index = 0; index < num_key_blocks; ++index) {
    if (index > 0) {  // also: all warps are done with the block before
      wait_for_copies();
      __syncthreads();
    }
    if (index + 1 < num_key_blocks) load_keys(index + 1);
    const int first_key = index * Sizes::kKeys, stage = index % 2 * Sizes::kKeyBytes;
    if (first_key >= warp_end) continue;
    typename ForwardWarp<T, kDim>::Scores scores = {};
    state.compute_scores(keys + stage, scores);
    if (first_key + Sizes::kKeys > task.length ||
        (task.is_causal && first_key + Sizes::kKeys > warp_query + 1))
      state.hide(scores, warp_query, first_key, task.length, task.is_causal);
    state.exponentiate(scores, task.scale * kLog2E);
    state.add_values(scores, values + stage, dropout, warp_query, first_key);
  }
  float factors[kRowTiles][2];
  const int num_valid = task.length - warp_query;
  state.finish(factors, task.logsumexp + (sequence * task.heads + head) * task.length + warp_query, num_valid,
               task.scale, dropout.scale);
  store_rows<T, kDim, kRowTiles>(state.out, factors, query_tile + Rows::bytes(warp * kWarpRows),
                                 rows_of(task.out, head, warp_query), task.out.row_stride, num_valid);
}

template <typename T, int kDim>
void launch_forward(const Queue& queue, const FusedAttentionTask& task) {
  using Sizes = ForwardShape<kDim>;
  const auto kernel = forward_kernel<T, kDim>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes);
  static_assert(Sizes::kSharedBytes <= attention_shared_bytes(kDim));
  const std::int64_t blocks =
      std::int64_t{(task.length + Sizes::kQueries - 1) / Sizes::kQueries} * task.heads * task.sequences;
  kernel<<<static_cast<unsigned>(blocks), Sizes::kThreads, Sizes::kSharedBytes, queue.stream>>>(task);
}

}  // namespace

bool fused_attention_supports(const FusedAttentionTask& task) {
  const auto is_aligned_rows = [&](const HeadRows& rows) {
    return rows.data == nullptr ||
           (is_aligned(rows.data, 16) && rows.row_stride % 8 == 0 && rows.head_stride % 8 == 0 &&
            (task.length + 128) * rows.row_stride < (std::int64_t{1} << 31));
  };
  const std::int64_t blocks = (std::int64_t{task.length} + 127) / 128 * task.heads * task.sequences;
  int device = 0, shared_bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return shared_bytes >= attention_shared_bytes(task.head_dim) &&
         (task.element == Element::bf16 || task.element == Element::fp16) &&
         (task.head_dim == 64 || task.head_dim == 128) && blocks < (std::int64_t{1} << 31) &&
         is_aligned_rows(task.q) && is_aligned_rows(task.k) && is_aligned_rows(task.v) &&
         is_aligned_rows(task.out) && is_aligned_rows(task.dout) && is_aligned_rows(task.dq) &&
         is_aligned_rows(task.dk) && is_aligned_rows(task.dv);
}

void fused_attention_forward(const Queue& queue, const FusedAttentionTask& task) {
  if (task.sequences * task.length * task.heads == 0) return;
  const bool is_bf16 = task.element == Element::bf16;
  if (task.head_dim == 64)
    return is_bf16 ? launch_forward<__nv_bfloat16, 64>(queue, task) : launch_forward<__half, 64>(queue, task);
  return is_bf16 ? launch_forward<__nv_bfloat16, 128>(queue, task) : launch_forward<__half, 128>(queue, task);
}

}  // namespace optimus::cuda
