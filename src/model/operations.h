// The work of a model, operation by operation: floating-point operations, bytes touched, and the tensors that
// each operation keeps for its backward. The engine's blocks run exactly these operations and the memory
// model and the cost model count them, so a new fused kernel is first of all a change here.
//
// All numbers are per token of a sequence of given length, for the whole (unsplit) model; `cut` says what
// tensor parallelism divides. Operations with cut none work on whole activations, which sequence parallelism
// divides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/tensors.h"

namespace optimus {

// The element type of a kept tensor: the plan's activation type, always fp32 (statistics), one byte (a
// dropout mask is re-computed from its key and kept as nothing), or a 64-bit token id.
enum class KeptType { activation, fp32, byte, index };

struct KeptTensor {
  std::string name;  // "norm1.input"
  double elements_per_token = 0;
  KeptType type = KeptType::activation;
  CutUnit cut = CutUnit::none;
  bool operator==(const KeptTensor&) const = default;
};

enum class OperationKind { embedding, product, attention, norm, rope, activation, residual, loss };

// Which recompute modes drop the kept tensors of an operation: selective re-computes the cheap, large ones
// (attention's inside in the plain twin, activation functions, norms' outputs); full keeps only the block's
// input.
enum class RecomputeMode { none, selective, full };

struct Operation {
  std::string name;  // "attention.q"
  OperationKind kind = OperationKind::product;
  CutUnit cut = CutUnit::none;
  // A product is [tokens, inner] x [inner, outer]; 0 for other kinds. Before any cut.
  std::int64_t inner = 0, outer = 0;
  double forward_flops = 0;   // per token; products and attention by their multiplications and additions
  double backward_flops = 0;  // per token; input and weight gradient together
  double moved_elements =
      0;  // activation elements read and written per token, forward: what bounds cheap operations
  std::vector<KeptTensor> kept;
  bool is_recomputed_by_selective = false;
};

// The operations of one block, in order, for sequences of `sequence_length`.
std::vector<Operation> operations(const ModelSpec& spec, BlockKind block, std::int64_t sequence_length);

// Bytes one block keeps for its backward, per token, when activations are stored in `activation_bytes` bytes.
double kept_bytes_per_token(const ModelSpec& spec, BlockKind block, std::int64_t sequence_length,
                            RecomputeMode mode, int activation_bytes);

// Forward and backward of the whole model, per token. The field's convention for MFU: 6 per parameter in a
// product, and attention over all positions (not only the causal half): 12 * layers * heads * head_dim *
// sequence_length.
double model_flops_per_token(const ModelSpec& spec, std::int64_t sequence_length);

}  // namespace optimus
