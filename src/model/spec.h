// ModelSpec: the definition of a model in plain numbers, independent of devices, plans and tensor contents.
//
// A spec comes from a preset (model/presets.h) or from a Hugging Face config.json (model/hf_config.h),
// optionally with overridden dimensions. Models that are not transformers are specified as a sequence of
// custom blocks, which are arbitrary functions with parameters. validate() rejects specs that no engine can
// build. Read next: model/tensors.h (the parameters of a model), model/operations.h (its work and its
// activations).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/box.h"
#include "model/family.h"

namespace optimus {

// gelu_tanh is Hugging Face's "gelu_new" and "gelu_pytorch_tanh". gelu is the exact function.
enum class Activation { gelu, gelu_tanh, silu, relu };
enum class RopeScalingKind { none, linear, llama3 };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3 only
  std::int64_t original_max_positions = 0;           // llama3 only
  bool operator==(const RopeScaling&) const = default;
};

// A mixture of experts. In some layers, a router sends each token to a few of many feed-forward networks.
struct Mixture {
  std::int64_t experts = 0;            // number of experts in each mixture layer; 0 if the model is dense
  std::int64_t experts_per_token = 0;  // number of experts that each token uses
  std::int64_t ffn = 0;                // inner width of one expert
  // Inner width of the shared expert, which every token also uses; 0 if there is none.
  std::int64_t shared_ffn = 0;
  std::int64_t first_layer = 0;     // layers before this one are dense
  std::int64_t layer_interval = 1;  // from `first_layer` on, layer l is a mixture if this divides l + 1
  bool normalizes_weights = true;   // the expert weights of each token sum to 1
  // DeepSeek: the experts are divided into `groups`. Each token uses experts from only `groups_per_token`
  // groups, and its expert weights are multiplied by `scale`.
  std::int64_t groups = 1, groups_per_token = 1;
  double scale = 1;
  double balance_loss = 0.001;  // weight of the auxiliary load-balancing loss
  bool operator==(const Mixture&) const = default;
};

// Latent attention (DeepSeek): queries are projected from one low-rank vector per token, and keys and values
// from another. The last `rope_dim` of the `head_dim` elements of each head carry positions. In the keys, all
// heads share these elements.
struct LatentAttention {
  // Widths of the low-rank vectors. kv_rank is 0 for ordinary attention.
  std::int64_t query_rank = 0, kv_rank = 0;
  std::int64_t rope_dim = 0, value_dim = 0;
  bool operator==(const LatentAttention&) const = default;
};

// A size in bytes that grows with the number of samples in a micro-batch.
struct SampleBytes {
  std::int64_t fixed = 0, per_sample = 0;
  std::int64_t of(std::int64_t samples) const { return fixed + per_sample * samples; }
  bool operator==(const SampleBytes&) const = default;
};

struct CustomTensor {
  std::string name;  // "conv1.weight" after the name of the block; unique in the model
  Shape shape;
  bool has_weight_decay = false;
  bool operator==(const CustomTensor&) const = default;
};

// A block of a model that is not a transformer. The engine defines its computation (engine/module_block.h),
// while plans, layouts, step programs and the memory model need only these numbers. A sample is treated as a
// sequence of one token. The last block computes the loss.
struct CustomBlock {
  std::string name;
  std::vector<CustomTensor> tensors;
  std::int64_t inputs = 0, outputs = 0;  // elements per sample; the last block has no outputs
  bool has_index_inputs = false;         // the inputs are 64-bit integers (first block only)
  double forward_flops = 0;              // per sample
  // `graph` is the memory of the autograd graph between the forward and backward passes. `graph_work` is the
  // additional memory while either pass runs. Both are measured in the precision of the plan.
  SampleBytes graph, graph_work;
  bool operator==(const CustomBlock&) const = default;
};

struct ModelSpec {
  std::string name;  // name of the preset or folder; for display only
  Family family = Family::gpt2;

  std::int64_t layers = 0, hidden = 0;
  // `kv_heads` divides `heads`; `head_dim` may differ from hidden / heads.
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t ffn = 0, vocab = 0;
  std::int64_t max_positions = 0;  // maximum sequence length, and the size of the table of learned positions
  std::int64_t token_types = 0;    // number of BERT's segment embeddings, otherwise 0

  NormKind norm = NormKind::layer_norm;
  NormPosition norm_position = NormPosition::pre;
  double norm_eps = 1e-5;
  Activation activation = Activation::gelu_tanh;
  bool is_gated = false;  // SwiGLU: down(act(gate(x)) * up(x))
  bool has_qkv_bias = true, has_out_bias = true, has_mlp_bias = true;
  bool has_qk_norm = false;  // Qwen 3: RMS norm of each query and key head
  PositionKind positions = PositionKind::learned;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool is_causal = true;  // false for BERT, which is trained with masked tokens
  bool is_tied = true;    // the word embedding is also the output projection

  LatentAttention latent{};
  Mixture mixture{};  // in a mixture model, `ffn` above is the width of the dense layers

  double init_range = 0.02;
  double embedding_dropout = 0, hidden_dropout = 0, attention_dropout = 0;

  // If not empty, the model consists of these blocks. Then `layers` is 0, and all fields above except `name`
  // are unused.
  std::vector<CustomBlock> custom;

  bool operator==(const ModelSpec&) const = default;

  bool is_custom() const { return !custom.empty(); }
  bool is_mixture() const { return mixture.experts > 0; }
  bool is_mixture_layer(std::int64_t layer) const {
    return is_mixture() && layer >= mixture.first_layer && (layer + 1) % mixture.layer_interval == 0;
  }
  bool is_latent() const { return latent.kv_rank > 0; }
  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t value_dim() const { return is_latent() ? latent.value_dim : head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  bool is_bert() const { return family == Family::bert || family == Family::megatron_bert; }
};

// Returns a spec with all properties that the family fixes (model/family.h). The dimensions are 0.
ModelSpec blank_spec(Family family);

// Dimensions from the command line. Absent dimensions keep the value from the preset or folder.
struct ModelOverrides {
  std::optional<std::int64_t> layers{}, hidden{}, heads{}, kv_heads{}, head_dim{}, ffn{}, vocab{},
      max_positions{};
  std::optional<bool> is_tied{};
};

// Applies overrides. If hidden or heads is overridden and head_dim is not, head_dim becomes hidden / heads.
// If hidden is overridden and ffn is not, the ffn of GPT-2 and BERT becomes 4 * hidden. If kv_heads and heads
// were equal, they remain equal. Throws a UserError if the result is invalid (see validate()).
ModelSpec with_overrides(ModelSpec spec, const ModelOverrides& overrides);

// Throws a UserError with the dimension, its value and the valid values if the spec is invalid. A spec is
// valid if the family's class in transformers can represent it too (model/family.h lists what a family fixes)
// and if it has at most 10,000 layers and 1e17 parameters. The limits keep counts and lists of tensors
// manageable.
void validate(const ModelSpec& spec);

std::string text(Activation activation);  // "gelu_tanh"

}  // namespace optimus
