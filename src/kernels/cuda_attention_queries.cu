// Attention with dropout on CUDA: the gradients of the queries, and the numbers per query of the workspace.
// A warp has 16 or 32 queries and goes through the keys. Read first: cuda_attention_backward.cuh.
#include "kernels/cuda_attention_backward.cuh"

namespace optimus::cuda {
namespace {

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

template <typename T, int kDim>
void launch(const Queue& queue, const FusedAttentionTask& task) {
  launch_rows<BackwardShape<kDim>>(query_gradient_kernel<T, kDim>, queue, task, task.heads);
}

void query_gradients(const Queue& queue, const FusedAttentionTask& task) {
  const bool is_bf16 = task.element == Element::bf16;
  if (task.head_dim == 64)
    return is_bf16 ? launch<__nv_bfloat16, 64>(queue, task) : launch<__half, 64>(queue, task);
  return is_bf16 ? launch<__nv_bfloat16, 128>(queue, task) : launch<__half, 128>(queue, task);
}

}  // namespace

void fused_attention_backward(const Queue& queue, const FusedAttentionTask& task) {
  if (task.sequences * task.length * task.heads == 0) return;
  query_gradients(queue, task);
  key_gradients(queue, task);
}

}  // namespace optimus::cuda
