// ModelSpec: what a language model *is*, as plain numbers. Nothing here knows devices, plans or tensors'
// contents.
//
// A spec comes from a preset (model/presets.h), from a Hugging Face config.json (model/hf_config.h), or from
// either with dimensions overridden; or it is a row of custom blocks (any function with parameters, for models that are no
// transformers). validate() refuses what no engine could build. Read next:
// model/tensors.h (the parameters that a spec implies), model/operations.h (its work and its activations).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/box.h"

namespace optimus {

enum class Family {
  gpt2,
  llama,
  mistral,
  qwen2,
  qwen3,
  bert,
  megatron_bert,
  mixtral,
  qwen3_moe,
  deepseek_v3
};
enum class NormKind { layer_norm, rms_norm };
// pre: x + f(norm(x)), as GPT-2, Llama, MegatronBert.  post: norm(x + f(x)), as BERT.
enum class NormPlace { pre, post };
// gelu_tanh is Hugging Face's "gelu_new" and "gelu_pytorch_tanh"; gelu is the exact one.
enum class Activation { gelu, gelu_tanh, silu, relu };
enum class PositionKind { learned, rope };
enum class RopeScalingKind { none, linear, llama3 };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3 only
  std::int64_t original_max_positions = 0;           // llama3 only
  bool operator==(const RopeScaling&) const = default;
};

// A mixture of experts: in some layers a router sends each token to a few of many feed-forward parts.
struct Mixture {
  std::int64_t experts = 0;            // of each such layer; 0: the model is dense
  std::int64_t experts_per_token = 0;  // that a token goes to
  std::int64_t ffn = 0;                // inner width of one expert
  std::int64_t shared_ffn = 0;         // of an expert that every token goes to beside them; 0: there is none
  std::int64_t first_layer = 0;        // layers before this one are dense
  std::int64_t every = 1;              // from there on, layer l is a mixture where this divides l + 1
  bool normalises = true;              // the weights of a token's experts add up to 1
  // DeepSeek: a token's experts lie in a few groups of experts; their weights are scaled.
  std::int64_t groups = 1, groups_per_token = 1;
  double scale = 1;
  double balance_loss = 0.001;  // weight of the loss that asks the router for even loads
  bool operator==(const Mixture&) const = default;
};

// Latent attention (DeepSeek): queries, and keys and values together, come out of narrow vectors. Of each head's `head_dim`
// the last `rope_dim` carry positions, and in keys all heads share those.
struct LatentAttention {
  std::int64_t query_rank = 0, kv_rank = 0;  // widths of the narrow vectors; kv_rank 0: ordinary attention
  std::int64_t rope_dim = 0, value_dim = 0;
  bool operator==(const LatentAttention&) const = default;
};

// Bytes that grow with the samples of a micro-batch.
struct SampleBytes {
  std::int64_t fixed = 0, per_sample = 0;
  std::int64_t of(std::int64_t samples) const { return fixed + per_sample * samples; }
  bool operator==(const SampleBytes&) const = default;
};

struct CustomTensor {
  std::string name;  // "conv1.weight", with the block's name in front; no other tensor of the model has it
  Shape shape;
  bool has_weight_decay = false;
  bool operator==(const CustomTensor&) const = default;
};

// A block of a model that is no transformer. What it computes is the engine's matter (engine/module_block.h); plans, layouts,
// programs and memory need only these numbers. A sample is a sequence of one token. The last block ends in the loss.
struct CustomBlock {
  std::string name;
  std::vector<CustomTensor> tensors;
  std::int64_t inputs = 0, outputs = 0;  // elements a sample; the last block gives none
  bool has_index_inputs = false;         // 64-bit whole numbers; the first block only
  double forward_flops = 0;              // a sample
  // Of the graph that autograd keeps from the forward to the backward, and beside it while one of them runs; measured in the
  // plan's precision.
  SampleBytes graph, graph_work;
  bool operator==(const CustomBlock&) const = default;
};

struct ModelSpec {
  std::string name;  // of the preset or folder; for people
  Family family = Family::gpt2;

  std::int64_t layers = 0, hidden = 0;
  std::int64_t heads = 0, kv_heads = 0,
               head_dim = 0;  // kv_heads divides heads; head_dim need not be hidden / heads
  std::int64_t ffn = 0, vocab = 0;
  std::int64_t max_positions = 0;  // longest sequence; the size of the table when positions are learned
  std::int64_t token_types = 0;    // BERT's segment embeddings, else 0

  NormKind norm = NormKind::layer_norm;
  NormPlace norm_place = NormPlace::pre;
  double norm_eps = 1e-5;
  Activation activation = Activation::gelu_tanh;
  bool is_gated = false;  // SwiGLU: down(act(gate(x)) * up(x))
  bool has_qkv_bias = true, has_out_bias = true, has_mlp_bias = true;
  bool has_qk_norm = false;  // Qwen 3: RMS norm of each query and key head
  PositionKind positions = PositionKind::learned;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool is_causal = true;  // false: BERT, trained by masked words
  bool is_tied = true;    // the output projection is the word embedding

  LatentAttention latent{};
  Mixture mixture{};  // ffn above is then that of the dense layers

  double init_range = 0.02;
  double embedding_dropout = 0, hidden_dropout = 0, attention_dropout = 0;

  // Not empty: the model is these blocks, layers is 0, and nothing above but the name means anything.
  std::vector<CustomBlock> custom;

  bool operator==(const ModelSpec&) const = default;

  bool is_custom() const { return !custom.empty(); }
  bool is_mixture() const { return mixture.experts > 0; }
  bool is_mixture_layer(std::int64_t layer) const {
    return is_mixture() && layer >= mixture.first_layer && (layer + 1) % mixture.every == 0;
  }
  bool is_latent() const { return latent.kv_rank > 0; }
  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t value_dim() const { return is_latent() ? latent.value_dim : head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  bool is_bert() const { return family == Family::bert || family == Family::megatron_bert; }
};

// Dimensions given on the command line; an absent one stays as the preset or folder has it.
struct ModelOverrides {
  std::optional<std::int64_t> layers{}, hidden{}, heads{}, kv_heads{}, head_dim{}, ffn{}, vocab{},
      max_positions{};
  std::optional<bool> is_tied{};
};

// Applies overrides. When hidden or heads is overridden and head_dim is not, head_dim becomes hidden / heads;
// GPT-2's and BERT's ffn becomes 4 * hidden when hidden is overridden and ffn is not; kv_heads follows heads
// where they were equal. Throws UserError when the result is no model (see validate).
ModelSpec with_overrides(ModelSpec spec, const ModelOverrides& overrides);

// Throws UserError, in one sentence that names the dimension, its value and what would be right. A valid spec
// is one that the family's class in transformers can hold too (model/family.h says what a family fixes), with
// at most 10,000 layers and 1e17 parameters, so that counts and lists of tensors stay small integers.
void validate(const ModelSpec& spec);

std::string text(Family family);          // "gpt2"
std::string text(Activation activation);  // "gelu_tanh"

}  // namespace optimus
