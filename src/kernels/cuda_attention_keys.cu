// Attention with dropout on CUDA: the gradients of the keys and values. A warp has 16 or 32 keys and goes
// through the queries, those of all heads that share the keys. Its scores are transposed, keys x queries; the
// warps of a block draw the random bits for each other. Read first: cuda_attention_backward.cuh.
//
// The probabilities include the dropout scale, and delta is divided by it: R is the left factor of dv, and dS
// = R dP - P delta.
#include "kernels/cuda_attention_backward.cuh"

namespace optimus::cuda {
namespace {

// The keys of one warp. Scores are transposed: keys x queries.
template <typename T, int kDim>
struct KeyGradientWarp {
  static constexpr int kRowTiles = BackwardShape<kDim>::kRowTiles;
  static constexpr int kChunk = BackwardShape<kDim>::kChunk;
  using Scores = float[kRowTiles][kChunk / 8][4];

  float dk[kRowTiles][kDim / 8][4] = {}, dv[kRowTiles][kDim / 8][4] = {};

  // 32 queries from first_query on, the first rows of the tiles. `offsets` and `delta` are theirs, from the
  // workspace.
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

// Draws the bits of the scores of a block of queries and the block's keys; each warp draws some tiles.
template <typename Sizes>
__device__ __forceinline__ void draw_bits(const HeadDropout& dropout, int first_query, int first_key,
                                          bool is_causal, std::uint32_t* to) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < Sizes::kBitTiles / Sizes::kWarps; ++i) {
    const int tile = warp + i * Sizes::kWarps;
    const int query = first_query + tile / 4 * kDropoutTileQueries,
              key = first_key + tile % 4 * kDropoutTileKeys;
    if (is_causal && query + kDropoutTileQueries <= key) continue;
    to[tile * kDropoutLanes + lane] =
        gathered(dropout(query / kDropoutTileQueries, key / kDropoutTileKeys, lane));
  }
}

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
  KeyGradientWarp<T, kDim> state;
  int index = 0;
  for (int member = 0; member < group; ++member) {
    const HeadDropout dropout(task, tensors.sequence, kv_head * group + member);
    for (int query_block = first_block; query_block < end_block; ++query_block, ++index) {
      const int stage = index % 2;
      std::uint32_t* const stage_bits = bits + stage * Sizes::kBitTiles * kDropoutLanes;
      draw_bits<Sizes>(dropout, query_block * Sizes::kOther, first_key, task.is_causal, stage_bits);
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

template <typename T, int kDim>
void launch(const Queue& queue, const FusedAttentionTask& task) {
  launch_rows<BackwardShape<kDim>>(key_gradient_kernel<T, kDim>, queue, task, task.kv_heads);
}

}  // namespace

void key_gradients(const Queue& queue, const FusedAttentionTask& task) {
  const bool is_bf16 = task.element == Element::bf16;
  if (task.head_dim == 64)
    return is_bf16 ? launch<__nv_bfloat16, 64>(queue, task) : launch<__half, 64>(queue, task);
  return is_bf16 ? launch<__nv_bfloat16, 128>(queue, task) : launch<__half, 128>(queue, task);
}

}  // namespace optimus::cuda
