// The parameters of a model as *logical tensors* in a canonical form: q, k, v, gate and up are separate,
// there is no padding, and matrices are [out, in]. Each tensor has a shape, an initialization, the split that
// tensor parallelism may apply, and a location in Hugging Face checkpoints. Layouts, checkpoints, engines and
// planners all refer to parameters through this list.
//
// A model is a sequence of blocks: the embedding (block 0), the layers (blocks 1 .. layers) and the head
// (block layers + 1: final norm and output projection). Pipelines are split between blocks. In a model with
// tied embeddings, the word embedding is one logical tensor that both the first and the last block use. A
// custom model consists of its custom blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/box.h"
#include "model/spec.h"

namespace optimus {

enum class BlockKind { embedding, layer, head, custom };
std::string text(BlockKind kind);  // "layer"

// The unit in which tensor parallelism splits a tensor: whole heads, whole key/value heads, single ffn
// columns or vocabulary rows. Tensors of a mixture's experts stack all experts along the rows. Expert
// parallelism distributes whole experts, of `ffn` rows each (expert_inner) or `hidden` rows each
// (expert_outer), and tensor parallelism never splits experts. In latent attention, heads may have other
// widths than head_dim (key_value_heads, value_heads).
enum class SplitUnit {
  none,
  heads,
  kv_heads,
  ffn,
  vocab,
  expert_inner,
  expert_outer,
  key_value_heads,
  value_heads
};
inline bool is_expert(SplitUnit unit) {
  return unit == SplitUnit::expert_inner || unit == SplitUnit::expert_outer;
}

struct TensorSplit {
  SplitUnit unit = SplitUnit::none;  // none: every tensor-parallel rank has the whole tensor
  int dim = 0;                       // the dimension that is split
  bool operator==(const TensorSplit&) const = default;
};

// With `custom`, the creator of the model provides the initial values.
enum class InitKind { normal, zeros, ones, custom };

struct Init {
  InitKind kind = InitKind::normal;
  double deviation = 0;  // standard deviation, for InitKind::normal only
  bool operator==(const Init&) const = default;
};

// The location of a logical tensor in a Hugging Face checkpoint: rows [offset, offset + n) of the output
// dimension of tensor `name`. If `is_transposed`, that tensor is stored as [in, out] (GPT-2's Conv1D). A
// mixture's experts are stored as [pieces, out, in], and the logical tensor consists of n / pieces rows of
// each of these matrices.
struct HfLocation {
  std::string name;
  bool is_transposed = false;
  std::int64_t offset = 0;
  Shape shape;  // shape of the whole tensor in the checkpoint
  std::int64_t pieces = 1;
  bool operator==(const HfLocation&) const = default;
};

struct LogicalTensor {
  std::string name;  // "layers.3.attention.q.weight"
  Shape shape;
  int block = 0;                 // the block that uses it first
  bool is_tied_to_head = false;  // whether this is a tied word embedding, which the head also uses
  // True for norms of query and key heads. The tensor is not split, but each tensor-parallel rank applies it
  // only to its own heads and therefore computes only a part of the gradient.
  bool is_per_head = false;
  TensorSplit split;
  Init init;
  bool has_weight_decay = false;  // true for matrices and embeddings, false for biases and norms
  HfLocation hf;
};

int num_blocks(const ModelSpec& spec);
BlockKind block_kind(const ModelSpec& spec, int block);
// Blocks of the same pattern differ only in their names. All dense layers of a transformer have one pattern,
// and all mixture layers have another. Each custom block has a separate pattern.
int num_patterns(const ModelSpec& spec);
int pattern(const ModelSpec& spec, int block);
// The first block of a pattern, or -1 if there is none. For example, a mixture model may have no dense
// layers.
int first_of_pattern(const ModelSpec& spec, int pattern);
std::int64_t num_blocks_of_pattern(const ModelSpec& spec, int pattern);
bool is_mixture_block(const ModelSpec& spec, int block);
// The number of elements per token (per sample in a custom model) that a block passes to the next block.
std::int64_t output_width(const ModelSpec& spec, int block);

// All parameters, block by block and in the order of use within each block.
std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec);
// The parameters of one block, in the same order. The head of a tied model does not list the word embedding.
std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec, int block);

std::int64_t num_parameters(const ModelSpec& spec);
// The number of parameters that one token uses. Only the experts to which the token is routed are counted.
std::int64_t num_active_parameters(const ModelSpec& spec);

// The number of units into which tensor parallelism may divide a tensor (such as the number of heads), and
// the size of each unit in elements. Both are 1 for SplitUnit::none.
std::int64_t num_units(const ModelSpec& spec, SplitUnit unit);
std::int64_t unit_width(const ModelSpec& spec, SplitUnit unit);

}  // namespace optimus
