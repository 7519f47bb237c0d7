// Attention with dropout on CUDA, backward: first the gradients of the queries (cuda_attention_queries.cu),
// then those of the keys and values (cuda_attention_keys.cu), with the scores computed in both. Each sum is
// kept in the registers of one warp, so results repeat exactly, and the workspace has two numbers per query.
// Here is what both share. Read first: cuda_attention_forward.cu.
//
//   probability P = 2^(scale' s - logsumexp')     retained probability R = P, or 0 if dropped
//   delta = sum over d of dout * out              dS = P (dP * dropout scale - delta), dP = 0 where dropped
//   dq = scale * dS k, dk = scale * dSᵀ q, dv = dropout scale * Rᵀ dout, with dP = dout vᵀ
#pragma once

#include <cmath>

#include "kernels/cuda_attention.cuh"

namespace optimus::cuda {

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

// Launches a kernel with one block of threads for each kOwn rows of a head.
template <typename Sizes>
void launch_rows(void (*kernel)(FusedAttentionTask), const Queue& queue, const FusedAttentionTask& task,
                 std::int64_t heads) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes);
  const std::int64_t blocks = (task.length + Sizes::kOwn - 1) / Sizes::kOwn * task.sequences * heads;
  kernel<<<static_cast<unsigned>(blocks), Sizes::kThreads, Sizes::kSharedBytes, queue.stream>>>(task);
}

// Computes dk and dv, after dq: reads the workspace.
void key_gradients(const Queue& queue, const FusedAttentionTask& task);

}  // namespace optimus::cuda
