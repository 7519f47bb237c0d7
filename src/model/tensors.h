// The parameters of a model as *logical tensors*: canonical (q, k, v, gate, up apart; no padding; matrices as
// [out, in]), each with its shape, its initialisation, how tensor parallelism may cut it, and its place in a
// Hugging Face checkpoint. Layouts, checkpoints, engines and planners all speak of parameters through this
// list.
//
// A model is a row of blocks: the embedding (block 0), the layers (blocks 1 .. layers) and the head (block
// layers + 1: final norm and output projection). Pipelines are cut between blocks. A tied model's word
// embedding is one logical tensor used by both ends. A model of custom blocks is the row of those.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/box.h"
#include "model/spec.h"

namespace optimus {

enum class BlockKind { embedding, layer, head, custom };
std::string text(BlockKind kind);  // "layer"

// What a tensor-parallel cut counts in: whole heads, whole key/value heads, single ffn columns, vocabulary
// rows. Tensors of a mixture's experts hold the experts one below the other; expert parallelism deals out whole ones, of
// `ffn` rows each (expert_inner) or `hidden` rows (expert_outer), and tensor parallelism never cuts them.
// Latent attention has heads that are wider (keys and values together) or narrower (values) than head_dim.
enum class CutUnit {
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
inline bool is_expert(CutUnit unit) { return unit == CutUnit::expert_inner || unit == CutUnit::expert_outer; }

struct Cut {
  CutUnit unit = CutUnit::none;  // none: every tensor-parallel rank holds the whole
  int dim = 0;                   // the dimension that is cut
  bool operator==(const Cut&) const = default;
};

// given: by whoever made the model.
enum class InitKind { normal, zeros, ones, given };

struct Init {
  InitKind kind = InitKind::normal;
  double deviation = 0;  // normal only
  bool operator==(const Init&) const = default;
};

// Where a logical tensor stands in a Hugging Face checkpoint: rows [offset, offset + n) of the output
// dimension of tensor `name`, which is stored [in, out] when is_transposed (GPT-2's Conv1D). A mixture's experts are stored
// [pieces, out, in]; of each matrix n / pieces rows are ours.
struct HfPlace {
  std::string name;
  bool is_transposed = false;
  std::int64_t offset = 0;
  Shape shape;  // of the whole tensor in the checkpoint
  std::int64_t pieces = 1;
  bool operator==(const HfPlace&) const = default;
};

struct LogicalTensor {
  std::string name;  // "layers.3.attention.q.weight"
  Shape shape;
  int block = 0;              // where it is first used
  bool is_also_head = false;  // a tied word embedding: used by the head block too
  // Not cut, but each tensor-parallel part uses it on its own heads only and so sees a part of its gradient: norms of heads.
  bool is_for_heads = false;
  Cut cut;
  Init init;
  bool has_weight_decay = false;  // matrices and embeddings yes; biases and norms no
  HfPlace hf;
};

int num_blocks(const ModelSpec& spec);
BlockKind block_kind(const ModelSpec& spec, int block);
// Blocks of one pattern are alike in all but their names: all layers of a transformer are, but dense ones and mixtures of
// experts differ; custom blocks are each their own.
int num_patterns(const ModelSpec& spec);
int pattern(const ModelSpec& spec, int block);
// The first block of a pattern; -1 when there is none (a mixture's dense layers).
int first_of_pattern(const ModelSpec& spec, int pattern);
std::int64_t num_of_pattern(const ModelSpec& spec, int pattern);
bool is_mixture_block(const ModelSpec& spec, int block);
// Elements a token (a sample of a custom model) that go from a block to the next.
std::int64_t output_width(const ModelSpec& spec, int block);

// All parameters, in block order; within a block in the order of use.
std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec);
// Those first used in one block, in the same order; a tied head lists none of the embedding's.
std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec, int block);

std::int64_t num_parameters(const ModelSpec& spec);
// Those that a token meets: all, but of a mixture's experts only as many as it goes to.
std::int64_t num_active_parameters(const ModelSpec& spec);

// How many units the cut dimension of `unit` has (heads, kv_heads, ffn, vocab), and how many elements each is
// wide; 1 and 1 for none.
std::int64_t num_units(const ModelSpec& spec, CutUnit unit);
std::int64_t unit_width(const ModelSpec& spec, CutUnit unit);

}  // namespace optimus
