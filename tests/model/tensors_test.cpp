// The list of parameters is complete, ordered, and cut and placed as documented. tests/parity/model_parity.py
// compares names and shapes with those of transformers.
#include "model/tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "model/presets.h"
#include "model/random_spec.h"

namespace optimus {
namespace {

std::vector<std::string> names(const ModelSpec& spec, int block) {
  std::vector<std::string> result;
  for (const LogicalTensor& tensor : logical_tensors(spec, block)) result.push_back(tensor.name);
  return result;
}

const LogicalTensor& named(const std::vector<LogicalTensor>& tensors, const std::string& name) {
  for (const LogicalTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::runtime_error("no " + name);
}

TEST(Tensors, BlocksOfGpt2InOrderOfUse) {
  const ModelSpec spec = *find_preset("gpt2");
  EXPECT_EQ(num_blocks(spec), 14);
  EXPECT_EQ(block_kind(spec, 0), BlockKind::embedding);
  EXPECT_EQ(block_kind(spec, 12), BlockKind::layer);
  EXPECT_EQ(block_kind(spec, 13), BlockKind::head);
  EXPECT_EQ(names(spec, 0),
            (std::vector<std::string>{"embedding.words.weight", "embedding.positions.weight"}));
  EXPECT_EQ(names(spec, 1),
            (std::vector<std::string>{
                "layers.0.norm1.weight", "layers.0.norm1.bias", "layers.0.attention.q.weight",
                "layers.0.attention.q.bias", "layers.0.attention.k.weight", "layers.0.attention.k.bias",
                "layers.0.attention.v.weight", "layers.0.attention.v.bias", "layers.0.attention.out.weight",
                "layers.0.attention.out.bias", "layers.0.norm2.weight", "layers.0.norm2.bias",
                "layers.0.mlp.up.weight", "layers.0.mlp.up.bias", "layers.0.mlp.down.weight",
                "layers.0.mlp.down.bias"}));
  EXPECT_EQ(names(spec, 13), (std::vector<std::string>{"head.norm.weight", "head.norm.bias"}));
}

TEST(Tensors, BertUsesPostNorm) {
  const ModelSpec spec = *find_preset("bert-base");
  const auto of_layer = names(spec, 1);
  EXPECT_EQ(of_layer.front(), "layers.0.attention.q.weight");
  EXPECT_EQ(of_layer[8], "layers.0.norm1.weight");
  EXPECT_EQ(of_layer.back(), "layers.0.norm2.bias");
  EXPECT_EQ(names(spec, 13), (std::vector<std::string>{"head.transform.weight", "head.transform.bias",
                                                       "head.transform_norm.weight",
                                                       "head.transform_norm.bias", "head.output.bias"}));
}

TEST(Tensors, Gpt2FusedQkvOffsets) {
  const auto layer = logical_tensors(*find_preset("gpt2"), 3);
  const LogicalTensor& k = named(layer, "layers.2.attention.k.weight");
  EXPECT_EQ(k.shape, (Shape{768, 768}));
  EXPECT_EQ(k.hf, (HfLocation{"transformer.h.2.attn.c_attn.weight", true, 768, {768, 2304}}));
  EXPECT_EQ(named(layer, "layers.2.attention.v.bias").hf,
            (HfLocation{"transformer.h.2.attn.c_attn.bias", false, 1536, {2304}}));
  EXPECT_EQ(named(layer, "layers.2.mlp.up.weight").hf,
            (HfLocation{"transformer.h.2.mlp.c_fc.weight", true, 0, {768, 3072}}));
}

TEST(Tensors, CutsOfGroupedHeads) {
  const ModelSpec spec = *find_preset("llama3-8b");
  const auto layer = logical_tensors(spec, 1);
  EXPECT_EQ(named(layer, "layers.0.attention.q.weight").split, (TensorSplit{SplitUnit::heads, 0}));
  EXPECT_EQ(named(layer, "layers.0.attention.k.weight").split, (TensorSplit{SplitUnit::kv_heads, 0}));
  EXPECT_EQ(named(layer, "layers.0.attention.out.weight").split, (TensorSplit{SplitUnit::heads, 1}));
  EXPECT_EQ(named(layer, "layers.0.mlp.gate.weight").split, (TensorSplit{SplitUnit::ffn, 0}));
  EXPECT_EQ(named(layer, "layers.0.mlp.down.weight").split, (TensorSplit{SplitUnit::ffn, 1}));
  EXPECT_EQ(named(layer, "layers.0.norm1.weight").split, TensorSplit{});
  EXPECT_EQ(num_units(spec, SplitUnit::kv_heads), 8);
  EXPECT_EQ(unit_width(spec, SplitUnit::kv_heads), 128);
}

TEST(Tensors, Gpt2ResidualInitIsScaled) {
  const auto layer = logical_tensors(*find_preset("gpt2"), 1);
  const double small = 0.02 / std::sqrt(24.0);
  EXPECT_DOUBLE_EQ(named(layer, "layers.0.attention.out.weight").init.deviation, small);
  EXPECT_DOUBLE_EQ(named(layer, "layers.0.mlp.down.weight").init.deviation, small);
  EXPECT_DOUBLE_EQ(named(layer, "layers.0.mlp.up.weight").init.deviation, 0.02);
  EXPECT_DOUBLE_EQ(
      named(logical_tensors(*find_preset("llama3-8b"), 1), "layers.0.mlp.down.weight").init.deviation, 0.02);
}

TEST(Tensors, OnlyTiedEmbeddingIsShared) {
  EXPECT_TRUE(logical_tensors(*find_preset("gpt2"), 0)[0].is_tied_to_head);
  EXPECT_FALSE(logical_tensors(*find_preset("llama3-8b"), 0)[0].is_tied_to_head);
  EXPECT_EQ(names(*find_preset("llama3-8b"), 33),
            (std::vector<std::string>{"head.norm.weight", "head.output.weight"}));
}

// Properties of every model: names are unique, blocks are in ascending order, cuts consist of whole units,
// every row of every checkpoint tensor belongs to exactly one logical tensor, and the counts agree.
void check_all(const ModelSpec& spec) {
  std::set<std::string> seen;
  std::map<std::string, std::int64_t> rows;
  std::map<std::string, std::int64_t> total;
  std::int64_t elements = 0;
  int block = 0;
  for (const LogicalTensor& tensor : logical_tensors(spec)) {
    EXPECT_TRUE(seen.insert(tensor.name).second) << tensor.name;
    EXPECT_GE(tensor.block, block);
    block = tensor.block;
    elements += tensor.shape.num_elements();
    EXPECT_EQ(tensor.has_weight_decay, tensor.shape.num_dims == 2);
    if (tensor.split.unit != SplitUnit::none) {
      EXPECT_EQ(tensor.shape[tensor.split.dim],
                num_units(spec, tensor.split.unit) * unit_width(spec, tensor.split.unit));
    }
    EXPECT_EQ(rows[tensor.hf.name], tensor.hf.offset);
    rows[tensor.hf.name] += tensor.shape[0] / tensor.hf.pieces;  // rows of each expert of a mixture
    total[tensor.hf.name] = tensor.hf.shape[tensor.hf.is_transposed || tensor.hf.pieces > 1 ? 1 : 0];
  }
  EXPECT_EQ(rows, total);
  EXPECT_EQ(elements, num_parameters(spec));
  EXPECT_LT(block, num_blocks(spec));
}

TEST(Tensors, EveryCheckpointRowIsCoveredOnce) {
  for (std::uint64_t seed = 0; seed < 350; ++seed) {
    SCOPED_TRACE(seed);
    check_all(random_spec(seed));
    check_all(random_mixture(seed));
  }
  for (const std::string& name : preset_names()) {
    SCOPED_TRACE(name);
    check_all(*find_preset(name));
  }
}

}  // namespace
}  // namespace optimus
