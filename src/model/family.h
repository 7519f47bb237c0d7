// The fixed properties of each model family, in one table. A config.json or a preset cannot change them.
// spec.cpp checks specs against the table, and hf_config.cpp fills specs from it. Parameter names in
// checkpoints are in model/hf_names.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

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
// pre: x + f(norm(x)), as in GPT-2, Llama, MegatronBert.  post: norm(x + f(x)), as in BERT.
enum class NormPosition { pre, post };
enum class PositionKind { learned, rope };

struct FamilyTraits {
  Family family;
  std::string_view model_type;    // model_type in config.json, and the name of the family in this project
  std::string_view architecture;  // the corresponding class in transformers
  NormKind norm;
  NormPosition norm_position;
  PositionKind positions;
  bool is_gated;
  bool has_grouped_heads;         // kv_heads may be smaller than heads
  bool has_independent_head_dim;  // head_dim may differ from hidden / heads
  bool has_qk_norm;
  bool is_causal;
  bool is_mixture = false;  // mixture of experts
  bool is_latent = false;   // latent attention
};

std::span<const FamilyTraits> all_families();
const FamilyTraits& traits(Family family);
std::string text(Family family);  // "gpt2"

}  // namespace optimus
