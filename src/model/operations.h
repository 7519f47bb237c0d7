// The operations of a model, with the FLOPs, the memory accesses and the saved tensors of each. The engine's
// blocks execute exactly these operations, and the memory model and the cost model count them. A new fused
// kernel therefore requires a change here.
//
// All numbers are per token, at a given sequence length, and for the whole (unsplit) model. `split` specifies
// what tensor parallelism divides. Operations with SplitUnit::none work on whole activations, which sequence
// parallelism divides by tokens.
//
// Assumptions about the engine: attention is a flash kernel, which stores no score matrix and saves one
// logsumexp per head and token. The loss and its gradient are computed together over chunks of tokens, so the
// full logits never exist. BERT's loss is counted for every position, although only masked positions have a
// target. Dropout masks are recomputed from their keys. A tensor that two operations need is saved once, by
// the first of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/tensors.h"

namespace optimus {

// `none` saves everything. `selective` recomputes large tensors that are inexpensive to compute (outputs of
// norms and activation functions). `full` saves only the input of the block. Each mode saves a subset of the
// tensors that the preceding mode saves.
enum class RecomputeMode { none, selective, full };
std::string text(RecomputeMode mode);  // "selective"

// The element type of a saved tensor: the activation type of the plan, fp32 for statistics (fp64 in fp64
// runs), one byte, or a 64-bit token id.
enum class SavedType { activation, fp32, byte, index };

struct SavedTensor {
  std::string name;  // "norm1.input"
  double elements_per_token = 0;
  SavedType type = SavedType::activation;
  SplitUnit split = SplitUnit::none;
  RecomputeMode strongest_saving_mode =
      RecomputeMode::selective;  // the last mode, in the order of RecomputeMode, that still saves the tensor
  // If not empty, this tensor is a range of columns of the fused matrix with this name, which one GEMM
  // writes.
  std::string matrix = {};
  bool operator==(const SavedTensor&) const = default;
};

// `custom` is an entire custom block. `routing` is the choice of experts in a mixture and the reordering of
// tokens for the experts and back.
enum class OperationKind {
  embedding,
  gemm,
  attention,
  norm,
  rope,
  activation,
  residual,
  loss,
  custom,
  routing
};

struct Operation {
  std::string name;  // "attention.q"
  OperationKind kind = OperationKind::gemm;
  SplitUnit split = SplitUnit::none;
  // A GEMM is [tokens, inner] x [inner, outer], with the sizes of the unsplit model. Both are 0 for other
  // operations.
  std::int64_t inner = 0, outer = 0;
  // For GEMMs of a mixture's experts, the number of experts and the number of experts that each token uses.
  std::int64_t experts = 1, passes = 1;
  // FLOPs of GEMMs and attention per token, with 2 FLOPs per multiply-add. 0 for memory-bound operations.
  // Attention counts only the positions that a token attends to: (length + 1) / 2 on average if causal,
  // otherwise all positions.
  double forward_flops = 0;
  double backward_flops = 0;  // input and weight gradients together: twice the forward FLOPs
  // FLOPs of forward work that the backward pass repeats in every mode, because its result is never stored:
  // the attention scores. MFU does not count it. The logits are also repeated if tensor parallelism splits
  // the vocabulary, but this field does not include them.
  double attention_recompute_flops = 0;
  // Activation elements read and written per token in the forward pass. They determine the time of
  // memory-bound operations.
  double accessed_elements = 0;
  std::vector<SavedTensor> saved;
  // Whether selective recomputation repeats the operation in the backward pass.
  bool is_recomputed_by_selective = false;
};

// The operations of one block, in order, for sequences of `sequence_length`. The overload with a BlockKind is
// for transformers. There, BlockKind::layer means a dense layer.
std::vector<Operation> operations(const ModelSpec& spec, int block, std::int64_t sequence_length);
std::vector<Operation> operations(const ModelSpec& spec, BlockKind block, std::int64_t sequence_length);

// A tensor that the backward pass of a block needs in addition to the saved tensors. With `is_for_weights`,
// the tensor is the gradient of a GEMM's output and lives until the weight gradient has been computed from
// it. All other gradients are released with the gradient of the block's input. "output.gradient" comes from
// the following block.
struct GradientTensor {
  std::string name;  // "mlp.up.gradient"
  double elements_per_token = 0;
  SplitUnit split = SplitUnit::none;
  bool is_for_weights = false;
  std::string matrix = {};  // see SavedTensor::matrix
};
std::vector<GradientTensor> gradients(const ModelSpec& spec, int block);
std::vector<GradientTensor> gradients(const ModelSpec& spec, BlockKind block);

// The name of the saved tensor that contains the input of a block. The input is the output of the preceding
// block or, for the first block of a custom model, the samples. The name is empty for the embedding.
std::string input_name(const ModelSpec& spec, int block);
std::string input_name(const ModelSpec& spec, BlockKind block);

// The number of tokens whose logits are in memory at the same time if a micro-batch has `tokens` tokens.
std::int64_t logit_rows(std::int64_t tokens);

// Bytes per token that one block saves for its backward pass, with `activation_bytes` bytes per activation
// element.
double saved_bytes_per_token(const ModelSpec& spec, BlockKind block, std::int64_t sequence_length,
                             RecomputeMode mode, int activation_bytes);
double saved_bytes_per_token(const ModelSpec& spec, int block, std::int64_t sequence_length,
                             RecomputeMode mode, int activation_bytes);

// Bytes per element of a saved tensor.
int bytes_per_element(SavedType type, int activation_bytes);

// Forward and backward FLOPs of the whole model per token, by the usual convention for MFU: 6 per parameter
// in a GEMM, plus 12 * layers * heads * head_dim * sequence_length for attention over all positions (not only
// the causal half). The word embedding counts once, as a GEMM in the head, whether tied or not. The embedding
// lookup, biases, norms and position tables do not count. Of a mixture's experts, only the experts that a
// token uses count. For BERT, the result equals three times the forward FLOPs of all operations. For causal
// models, it is larger by 6 * layers * heads * head_dim * (sequence_length - 1). For custom models, the
// result is three times the FLOPs that their blocks declare.
double model_flops_per_token(const ModelSpec& spec, std::int64_t sequence_length);

}  // namespace optimus
