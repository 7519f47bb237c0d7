// Implements hf_config_from_spec() of hf_config.h. Token ids are not set here, because only the caller that
// exports a model knows its tokenizer.
#include "base/error.h"
#include "model/family.h"
#include "model/hf_config.h"
#include "model/hf_rope.h"

namespace optimus {
namespace {

const char* hf_activation(const ModelSpec& spec) {
  switch (spec.activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return spec.family == Family::gpt2 ? "gelu_new" : "gelu_pytorch_tanh";
    case Activation::silu:
      return "silu";
    case Activation::relu:
      return "relu";
  }
  return "";
}

void write_gpt2(const ModelSpec& spec, OrderedJson& config) {
  config["n_layer"] = spec.layers;
  config["n_embd"] = spec.hidden;
  config["n_head"] = spec.heads;
  config["n_inner"] = spec.ffn;
  config["n_positions"] = spec.max_positions;
  config["activation_function"] = hf_activation(spec);
  config["layer_norm_epsilon"] = spec.norm_eps;
  config["embd_pdrop"] = spec.embedding_dropout;
  config["resid_pdrop"] = spec.hidden_dropout;
  config["attn_pdrop"] = spec.attention_dropout;
}

void write_dimensions(const ModelSpec& spec, OrderedJson& config) {
  config["num_hidden_layers"] = spec.layers;
  config["hidden_size"] = spec.hidden;
  config["num_attention_heads"] = spec.heads;
  config["intermediate_size"] = spec.ffn;
  config["max_position_embeddings"] = spec.max_positions;
  config["hidden_act"] = hf_activation(spec);
}

void write_bert(const ModelSpec& spec, OrderedJson& config) {
  write_dimensions(spec, config);
  config["type_vocab_size"] = spec.token_types;
  config["layer_norm_eps"] = spec.norm_eps;
  config["hidden_dropout_prob"] = spec.hidden_dropout;
  config["attention_probs_dropout_prob"] = spec.attention_dropout;
}

void write_mixture(const ModelSpec& spec, OrderedJson& config) {
  const Mixture& m = spec.mixture;
  config["num_experts_per_tok"] = m.experts_per_token;
  if (spec.family == Family::deepseek_v3) {
    config["n_routed_experts"] = m.experts, config["moe_intermediate_size"] = m.ffn;
    config["n_shared_experts"] = m.shared_ffn / m.ffn, config["first_k_dense_replace"] = m.first_layer;
    config["n_group"] = m.groups, config["topk_group"] = m.groups_per_token;
    config["routed_scaling_factor"] = m.scale, config["norm_topk_prob"] = m.normalizes_weights;
    config["num_nextn_predict_layers"] = 0;
    return;
  }
  config["router_aux_loss_coef"] = m.balance_loss;
  if (spec.family == Family::mixtral) {
    config["num_local_experts"] = m.experts;
    return;
  }
  config["num_experts"] = m.experts;
  config["moe_intermediate_size"] = m.ffn;
  config["norm_topk_prob"] = m.normalizes_weights;
  config["decoder_sparse_step"] = m.layer_interval;
  config["mlp_only_layers"] = OrderedJson::array();
  for (std::int64_t layer = 0; layer < m.first_layer; ++layer) config["mlp_only_layers"].push_back(layer);
}

void write_latent(const ModelSpec& spec, OrderedJson& config) {
  const LatentAttention& l = spec.latent;
  config["q_lora_rank"] = l.query_rank, config["kv_lora_rank"] = l.kv_rank;
  config["qk_rope_head_dim"] = l.rope_dim, config["qk_nope_head_dim"] = spec.head_dim - l.rope_dim;
  config["v_head_dim"] = l.value_dim;
}

void write_llama(const ModelSpec& spec, OrderedJson& config) {
  write_dimensions(spec, config);
  config["num_key_value_heads"] = spec.kv_heads;
  config["head_dim"] = spec.is_latent() ? spec.latent.rope_dim : spec.head_dim;
  config["rms_norm_eps"] = spec.norm_eps;
  config["attention_dropout"] = spec.attention_dropout;
  write_hf_rope(config, {spec.rope_theta, spec.rope_scaling});
  if (spec.family == Family::llama || spec.family == Family::qwen3 || spec.family == Family::qwen3_moe)
    config["attention_bias"] = spec.has_qkv_bias;
  if (spec.family == Family::llama) config["mlp_bias"] = spec.has_mlp_bias;
  if (spec.family == Family::mistral || spec.family == Family::mixtral) config["sliding_window"] = nullptr;
  if (spec.family == Family::qwen2 || spec.family == Family::qwen3 || spec.family == Family::qwen3_moe)
    config["use_sliding_window"] = false;
  if (spec.is_mixture()) write_mixture(spec, config);
  if (spec.is_latent()) write_latent(spec, config);
}

}  // namespace

OrderedJson hf_config_from_spec(const ModelSpec& spec) {
  validate(spec);
  const FamilyTraits& family_traits = traits(spec.family);
  OrderedJson config;
  if (!spec.name.empty()) config["_name_or_path"] = spec.name;
  config["architectures"] = OrderedJson::array({family_traits.architecture});
  config["model_type"] = family_traits.model_type;
  config["vocab_size"] = spec.vocab;
  switch (spec.family) {
    case Family::gpt2:
      write_gpt2(spec, config);
      break;
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
    case Family::mixtral:
    case Family::qwen3_moe:
    case Family::deepseek_v3:
      write_llama(spec, config);
      break;
    case Family::bert:
    case Family::megatron_bert:
      write_bert(spec, config);
      break;
  }
  config["tie_word_embeddings"] = spec.is_tied;
  config["initializer_range"] = spec.init_range;
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[token] = nullptr;
  return config;
}

}  // namespace optimus
