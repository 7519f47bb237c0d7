// The work of a model, operation by operation: floating-point operations, bytes touched, and the tensors that
// each operation keeps for its backward. The engine's blocks run exactly these operations and the memory
// model and the cost model count them, so a new fused kernel is first of all a change here.
//
// All numbers are per token of a sequence of given length, for the whole (unsplit) model; `cut` says what
// tensor parallelism divides. Operations with cut none work on whole activations, which sequence parallelism
// divides.
//
// What is assumed of the engine: attention is a flash kernel (no score matrix; it keeps one logarithm of a
// sum per head and token), the loss goes over the tokens in chunks, together with its gradient (never all logits;
// BERT's counts every position, though only masked ones have a target), dropout masks are computed
// again from their keys, and a tensor that two operations need is kept once, under the operation that is
// named first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/tensors.h"

namespace optimus {

// none keeps everything; selective computes the cheap, large ones again (outputs of norms and activation
// functions); full keeps only the block's input. Each mode keeps a part of what the mode before it keeps.
enum class RecomputeMode { none, selective, full };
std::string text(RecomputeMode mode);  // "selective"

// The element type of a kept tensor: the plan's activation type, fp32 (statistics; fp64 in fp64 runs), one byte, or a
// 64-bit token id.
enum class KeptType { activation, fp32, byte, index };

struct KeptTensor {
  std::string name;  // "norm1.input"
  double elements_per_token = 0;
  KeptType type = KeptType::activation;
  CutUnit cut = CutUnit::none;
  RecomputeMode kept_up_to = RecomputeMode::selective;  // the strongest mode that still keeps it
  std::string matrix =
      {};  // not empty: a range of columns of the matrix of that name, so that one product fills it
  bool operator==(const KeptTensor&) const = default;
};

// custom: all of a custom block.
// routing: a mixture's choice of experts, and bringing tokens into their order and back.
enum class OperationKind {
  embedding,
  product,
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
  OperationKind kind = OperationKind::product;
  CutUnit cut = CutUnit::none;
  // A product is [tokens, inner] x [inner, outer]; 0 for other kinds. Before any cut.
  std::int64_t inner = 0, outer = 0;
  // Products of a mixture's experts: how many such matrices there are, and how many of them a token meets.
  std::int64_t experts = 1, passes = 1;
  // Multiplications and additions of products and attention, per token; 0 for what memory bounds. Attention
  // counts the positions it looks at: (length + 1) / 2 of them on average when causal, all of them otherwise.
  double forward_flops = 0;
  double backward_flops = 0;  // input and weight gradient together: twice forward
  // Forward work that the backward repeats in every mode because its result is never stored: attention's
  // scores. Real work, but not counted by MFU. (The logits are repeated where tensor parallelism cuts the vocabulary.)
  double repeated_flops = 0;
  // Activation elements read and written per token, forward: what bounds cheap operations.
  double moved_elements = 0;
  std::vector<KeptTensor> kept;
  bool is_recomputed_by_selective = false;  // runs a second time, in the backward
};

// The operations of one block, in order, for sequences of `sequence_length`. By kind: of transformers; a layer is a dense one.
std::vector<Operation> operations(const ModelSpec& spec, int block, std::int64_t sequence_length);
std::vector<Operation> operations(const ModelSpec& spec, BlockKind block, std::int64_t sequence_length);

// What a block's backward needs beside what was kept. Gradients of products' outputs stay until the weight gradients have
// read them; the others end with the block's input gradient. "output.gradient" comes from the block above.
struct GradientTensor {
  std::string name;  // "mlp.up.gradient"
  double elements_per_token = 0;
  CutUnit cut = CutUnit::none;
  bool is_for_weights = false;
  std::string matrix = {};  // as KeptTensor's
};
std::vector<GradientTensor> gradients(const ModelSpec& spec, int block);
std::vector<GradientTensor> gradients(const ModelSpec& spec, BlockKind block);

// The kept tensor that holds a block's input (the stream that comes from the block before, or of a custom model's first block the samples); empty for the embedding.
std::string input_name(const ModelSpec& spec, int block);
std::string input_name(const ModelSpec& spec, BlockKind block);

// Tokens whose logits are in memory at one time.
std::int64_t logit_rows(std::int64_t tokens);

// Bytes one block keeps for its backward, per token, when activations are stored in `activation_bytes` bytes.
double kept_bytes_per_token(const ModelSpec& spec, BlockKind block, std::int64_t sequence_length,
                            RecomputeMode mode, int activation_bytes);
double kept_bytes_per_token(const ModelSpec& spec, int block, std::int64_t sequence_length,
                            RecomputeMode mode, int activation_bytes);

// Bytes per element of a kept tensor.
int bytes_per_element(KeptType type, int activation_bytes);

// Forward and backward of the whole model, per token. The field's convention for MFU: 6 per parameter in a
// product, and attention over all positions (not only the causal half): 12 * layers * heads * head_dim *
// sequence_length. The word embedding counts as a product once, in the head, tied or not; its lookup, biases,
// norms and position tables count nothing; of a mixture's experts those count that a token goes to. Three times the forward flops of all operations is the same number
// for BERT, and for causal models less by 6 * layers * heads * head_dim * (sequence_length - 1). Custom models: three times
// what their blocks say.
double model_flops_per_token(const ModelSpec& spec, std::int64_t sequence_length);

}  // namespace optimus
