// The interface of the CUDA kernels, used by cuda.cpp. It passes raw pointers, sizes and a stream, and does
// not depend on libtorch, so that nvcc compiles in seconds. Nothing here allocates memory; callers pass
// workspaces. Launches are asynchronous, and cudaGetLastError() reports errors.
//
// kernels.h documents each operation under the same name. Read next: cuda_math.cuh (elements), then any
// cuda_*.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/step_scalars.h"
#include "model/spec.h"

namespace optimus::cuda {

enum class Element { fp64, fp32, bf16, fp16 };
inline int size_of(Element element) {
  return element == Element::fp64 ? 8 : element == Element::fp32 ? 4 : 2;
}

struct Queue {
  cudaStream_t stream = nullptr;
  int num_multiprocessors = 1;  // multiprocessors of the device
};

// A [rows, width] or [rows, heads, width] tensor as rows * heads rows. Strides are in elements. data is null
// for an absent tensor.
struct Rows {
  void* data = nullptr;
  std::int64_t num_rows = 0, num_inner = 1, width = 0;  // num_rows is the total number, rows * heads
  std::int64_t outer_stride = 0, inner_stride = 0;
};

constexpr std::int64_t kMaxNormWidth = 16384;

struct NormTask {
  Element element = Element::fp32;
  bool is_centered = false;
  double eps = 0;
  Rows x, y, statistics;
  const void *weight = nullptr, *bias = nullptr;
};
void norm(const Queue& queue, const NormTask& task);

// Destination of an fp8 tensor (see QuantizeTask). y is [rows, width] and transposed is [width, rows]; each
// is null if not needed.
struct Fp8Pointers {
  void *y = nullptr, *transposed = nullptr;
  const float* scale = nullptr;
  std::uint32_t* maximum = nullptr;
};
// Like norm(), but the result is rounded to bf16 and then to e4m3. The task's y is not written, and there is
// no transposed copy. The input is bf16 in 16-byte packs. The number of rows and the width are multiples of
// 16.
void norm_to_fp8(const Queue& queue, const NormTask& task, const Fp8Pointers& output);

struct NormBackwardTask {
  Element element = Element::fp32;
  bool is_centered = false;
  Rows dy, x, residual, dx, statistics;
  const void* weight = nullptr;
  void *weight_gradient = nullptr, *bias_gradient = nullptr;
  // column sums of residual and of dx; null if not needed
  void *residual_sum = nullptr, *output_sum = nullptr;
  void* workspace = nullptr;  // norm_backward_workspace() elements of the wider type
};
// Returns whether norm_backward can compute residual_sum and output_sum for this task.
bool norm_backward_can_sum(const NormBackwardTask& task);
std::int64_t norm_backward_workspace(const Queue& queue, const NormBackwardTask& task);
void norm_backward(const Queue& queue, const NormBackwardTask& task);

struct ActivationTask {
  Element element = Element::fp32;
  Activation kind = Activation::gelu;
  Rows x, gate, y;      // forward
  Rows dy, dx, d_gate;  // backward
};
void activation(const Queue& queue, const ActivationTask& task);
void activation_backward(const Queue& queue, const ActivationTask& task);

struct RopeTask {
  Element element = Element::fp32;
  Rows x;  // [rows, heads, head_dim]
  const void *cosine = nullptr, *sine = nullptr;
  const std::int32_t* positions = nullptr;
  std::int64_t num_positions = 0;
  bool is_backward = false;
};
void rope(const Queue& queue, const RopeTask& task);

struct EmbeddingTask {
  Element element = Element::fp32;
  const std::int64_t* ids = nullptr;
  const std::int32_t* position_ids = nullptr;
  Rows tokens, positions, types, out;
};
void embedding(const Queue& queue, const EmbeddingTask& task);

// table[ids[order[i]]] += values[order[i]], where `order` sorts the ids stably, and sorted[i] =
// ids[order[i]].
struct ScatterTask {
  Element element = Element::fp32;  // type of values; the table has the wider type
  Rows values, table;
  const std::int64_t *sorted = nullptr, *order = nullptr;
  void* workspace = nullptr;  // [scatter_pieces(), 2, width] of the wider type
};
std::int64_t scatter_pieces(std::int64_t num_rows);
void add_to_table(const Queue& queue, const ScatterTask& task);

struct LossTask {
  Element element = Element::fp32;
  Rows logits;
  const std::int64_t* targets = nullptr;
  void* losses = nullptr;
  double gradient_scale = 0;
};
void cross_entropy(const Queue& queue, const LossTask& task);

// The maximum number of sequences or heads per launch with dropout. It is limited because their keys are
// kernel arguments.
constexpr int kMaxDropoutKeys = 256;
struct DropoutKeys {
  std::uint64_t of[kMaxDropoutKeys] = {};
};
struct AddTask {
  Element element = Element::fp32;
  Rows x, residual, y;
  const void* bias = nullptr;
  double rate = 0;
  std::int64_t sequence_length = 1;
  std::int64_t first_row = 0;  // index of the first row of x among the rows of the sequences
  // Row r of a sequence has position first_position + r, plus `jump` if r >= jump_at.
  std::int64_t first_position = 0, jump_at = 0, jump = 0;
};
// `keys` has one key for each of the (rows / sequence_length) sequences. It is not read if the rate is 0.
void add(const Queue& queue, const AddTask& task, const DropoutKeys& keys);

// Fills `factors`, contiguous [heads, queries, keys]. Dropped scores get 0. Retained scores get 1 / (1 -
// rate) or, in a mask, 1. Queries and keys are positions in the sequence.
struct DropoutFactorsTask {
  Element element = Element::fp32;
  void* factors = nullptr;
  bool is_mask = false, is_causal = false;  // is_causal: no random numbers for keys after their query
  std::int64_t num_heads = 0;  // at most kMaxDropoutKeys; heads of several sequences are concatenated
  std::int64_t first_query = 0, num_queries = 0, first_key = 0, num_keys = 0, max_positions = 0;
  double rate = 0;
};
// `keys` has one key per head.
void dropout_factors(const Queue& queue, const DropoutFactorsTask& task, const DropoutKeys& keys);

// sum[j] += the sum of column j of x, with a workspace of [sum_parts(), width] of the wider type.
std::int64_t sum_parts(const Queue& queue, Element element, const Rows& x);
void add_rows(const Queue& queue, Element element, const Rows& x, void* sum, void* workspace);
// sums[s][j] += sum over p of parts[p * stride + s * width + j], in a fixed order, for each sums[s] that is
// not null. `element` is fp32 or fp64.
struct PartialSumsTask {
  Element element = Element::fp32;
  const void* parts = nullptr;
  std::int64_t num_parts = 0, stride = 0, width = 0;
  void* sums[4] = {};
};
void add_partial_sums(const Queue& queue, const PartialSumsTask& task);

// *sum += the sum of the squares of `values`, with a workspace of kSquareParts numbers.
constexpr int kSquareParts = 1024;
void add_square_sum(const Queue& queue, Element element, const void* values, std::int64_t count, double* sum,
                    double* workspace);

struct AdamTask {
  Element element = Element::fp32;  // type of the weight; everything else has the wider type
  double beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double* step_scalars = nullptr;  // the step scalars, on the device
  std::int64_t count = 0;
  const void* gradient = nullptr;
  void *master = nullptr, *first = nullptr, *second = nullptr, *weight = nullptr;
};
void adamw(const Queue& queue, const AdamTask& task);
void pass_gate(const Queue& queue, const GateOptions& options, double* step_scalars);

// Conversion to fp8: y = x * scale, rounded to nearest even. Values that are too large saturate at the
// largest number, but infinity becomes NaN. y is [rows, width] and transposed is [width, rows]; each is null
// if not needed. maximum (may be null) becomes the maximum of itself and |x|, compared as unsigned words, so
// that NaN is the largest. x is bf16 or fp16 in 16-byte packs. The number of rows and the width are multiples
// of 16.
enum class Fp8Format { e4m3, e5m2 };
struct QuantizeTask {
  Element element = Element::bf16;
  Fp8Format format = Fp8Format::e4m3;
  Rows x;
  void *y = nullptr, *transposed = nullptr;
  const float* scale = nullptr;
  std::uint32_t* maximum = nullptr;
};
void quantize(const Queue& queue, const QuantizeTask& task);

// The gradient through an activation function, rounded to bf16 and then to e5m2, and its column sums. Fuses
// activation_backward, add_rows and quantize. With a gate, the gate's columns come first, and no column sums
// are computed. All inputs are bf16.
struct QuantizeActivationGradientTask {
  Activation kind = Activation::gelu;
  Rows dy, x, gate;
  void *y = nullptr, *transposed = nullptr;  // [rows, columns], [columns, rows]
  const float* scale = nullptr;
  std::uint32_t* maximum = nullptr;
  // Null if not needed. workspace is [quantize_activation_gradient_parts(), width].
  float *sum = nullptr, *workspace = nullptr;
};
std::int64_t quantize_activation_gradient_parts(std::int64_t num_rows);
void quantize_activation_gradient(const Queue& queue, const QuantizeActivationGradientTask& task);
// Like activation(), but the result is rounded to bf16 and then to e4m3, and written in row order and
// transposed. The input has the same constraints as the input of quantize().
void activation_to_fp8(const Queue& queue, const ActivationTask& task, const Fp8Pointers& output);
// Writes the transpose of `from`, [rows, width] bytes, to `to`, [width, rows].
void transpose_fp8(const Queue& queue, const void* from, std::int64_t num_rows, std::int64_t width, void* to);

}  // namespace optimus::cuda
