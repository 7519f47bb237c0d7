// See hf_config_keys.h.
#include "model/hf_config_keys.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

// A key that would change the computation in an unsupported way unless it is null or has its neutral value.
struct NeutralKey {
  std::string_view key;
  std::string_view neutral;  // the value that has no effect, as JSON
};

struct FamilyKeys {
  Family family;
  std::vector<std::string_view> supported;  // read by hf_config.cpp
  std::vector<NeutralKey> neutral;
};

// clang-format off
FamilyKeys family_keys(Family family) {
  switch (family) {
    case Family::gpt2: return {family,
        {"n_embd", "hidden_size", "n_layer", "num_hidden_layers", "n_head", "num_attention_heads",
         "n_positions", "max_position_embeddings", "n_inner", "activation_function", "layer_norm_epsilon",
         "embd_pdrop", "resid_pdrop", "attn_pdrop"},
        {{"scale_attn_weights", "true"}, {"scale_attn_by_inverse_layer_idx", "false"},
         {"reorder_and_upcast_attn", "false"}, {"position_embedding_type", "\"absolute\""}}};
    case Family::llama: return {family,
        {"attention_bias", "mlp_bias"},
        {{"sliding_window", "null"}}};
    case Family::mistral: return {family,
        {"sliding_window"},
        {{"attention_bias", "false"}, {"mlp_bias", "false"}, {"layer_types", "null"}}};
    case Family::qwen2: return {family,
        {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"},
        {{"use_mrope", "false"}, {"mlp_bias", "false"}}};
    case Family::qwen3: return {family,
        {"attention_bias", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"},
        {{"use_mrope", "false"}, {"mlp_bias", "false"}}};
    case Family::mixtral: return {family,
        {"sliding_window", "num_local_experts", "num_experts", "num_experts_per_tok", "router_aux_loss_coef"},
        {{"attention_bias", "false"}, {"mlp_bias", "false"}, {"layer_types", "null"},
         {"router_jitter_noise", "0.0"}}};
    case Family::qwen3_moe: return {family,
        {"attention_bias", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types",
         "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
         "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef"},
        {{"use_mrope", "false"}, {"mlp_bias", "false"}}};
    case Family::deepseek_v3: return {family,
        {"n_routed_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
         "n_shared_experts", "first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor",
         "norm_topk_prob", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
         "qk_head_dim", "v_head_dim"},
        {{"attention_bias", "false"}, {"mlp_bias", "false"}, {"rope_interleave", "true"},
         {"moe_layer_freq", "1"}, {"scoring_func", "\"sigmoid\""}, {"topk_method", "\"noaux_tc\""},
         {"num_nextn_predict_layers", "0"}, {"num_mtp_layers", "0"}}};
    case Family::bert:
    case Family::megatron_bert: return {family,
        {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
         "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
         "layer_norm_eps"},
        {{"position_embedding_type", "\"absolute\""}, {"is_decoder", "false"}}};
  }
  return {family, {}, {}};
}

constexpr std::string_view kSupportedByAll[] = {
    "model_type", "vocab_size", "tie_word_embeddings", "initializer_range"};

constexpr std::string_view kSupportedByLlamaLike[] = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_dropout",
    "rope_theta", "rope_scaling", "rope_parameters"};

constexpr NeutralKey kNeutralForAll[] = {
    {"is_encoder_decoder", "false"}, {"add_cross_attention", "false"},
    {"cross_attention_hidden_size", "null"}, {"tie_encoder_decoder", "false"}, {"pruned_heads", "{}"},
    {"per_layer_config", "null"}, {"quantization_config", "null"}, {"compression_config", "null"}};

constexpr NeutralKey kNeutralForLlamaLike[] = {
    {"partial_rotary_factor", "1.0"}, {"rope_interleaved", "false"}};

// Keys on which the trained computation does not depend: names, versions, token ids, other heads, output
// formats, text generation, and entries of other tools.
constexpr std::string_view kBookkeeping[] = {
    // origin
    "_name_or_path", "name_or_path", "architectures", "transformers_version", "_commit_hash", "auto_map",
    "custom_pipelines", "_from_auto", "is_llama_config", "unsloth_version", "unsloth_fixed", "model_name",
    "transformers.js_config", "_diffusers_version", "framework", "license", "language", "tokenizer_class",
    "vocab_file", "model_max_length", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx",
    "base_model_tp_plan", "base_model_pp_plan", "base_model_fsdp_plan", "base_model_ep_plan",
    // storage and implementation: results agree up to rounding
    "torch_dtype", "dtype", "use_bfloat16", "torchscript", "gradient_checkpointing", "pretraining_tp",
    "chunk_size_feed_forward", "_attn_implementation", "attn_implementation", "_attn_implementation_autoset",
    "_attn_implementation_internal", "_flash_attn_2_enabled", "_experts_implementation",
    "_experts_implementation_internal", "experts_implementation", "tie_last_hidden_states", "is_decoder",
    // tokens
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
    "unk_token_id", "decoder_start_token_id", "prefix", "bos_token", "eos_token", "pad_token",
    // outputs
    "use_cache", "output_router_logits", "output_attentions", "output_hidden_states", "return_dict",
    "keys_to_ignore_at_inference",
    // other heads
    "id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task",
    "classifier_dropout", "task_specific_params", "summary_type", "summary_use_proj", "summary_activation",
    "summary_proj_to_labels", "summary_first_dropout", "summary_last_dropout", "predict_special_tokens",
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type",
    // generation
    "max_length", "max_new_tokens", "min_length", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "epsilon_cutoff",
    "eta_cutoff", "encoder_repetition_penalty", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind",
    // TensorFlow and JAX
    "tf_legacy_loss", "use_tf", "xla_device",
};
// clang-format on

FamilyKeys all_keys(Family family) {
  FamilyKeys keys = family_keys(family);
  const auto add = [](auto& list, const auto& new_keys) {
    list.insert(list.end(), std::begin(new_keys), std::end(new_keys));
  };
  add(keys.supported, kSupportedByAll);
  add(keys.neutral, kNeutralForAll);
  const bool is_llama_like = family == Family::llama || family == Family::mistral ||
                             family == Family::qwen2 || family == Family::qwen3 ||
                             family == Family::mixtral || family == Family::qwen3_moe ||
                             family == Family::deepseek_v3;
  if (is_llama_like) {
    add(keys.supported, kSupportedByLlamaLike);
    add(keys.neutral, kNeutralForLlamaLike);
  }
  return keys;
}

std::string quoted_json(const Json& value) {
  return in_quotes(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool is_listed(std::span<const std::string_view> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Returns whether the key must have a neutral value. Throws a UserError if it must but has another value.
bool is_neutral_key(const FamilyKeys& keys, std::string_view key, const JsonView& value) {
  const auto row = std::find_if(keys.neutral.begin(), keys.neutral.end(),
                                [&](const NeutralKey& candidate) { return candidate.key == key; });
  if (row == keys.neutral.end()) return false;
  if (value.raw() != Json::parse(row->neutral))
    throw UserError("{}: expected {} or an absent key, got {} (not supported)", value.location(),
                    row->neutral, quoted_json(value.raw()));
  return true;
}

}  // namespace

void reject_unsupported_keys(const JsonView& config, Family family) {
  const FamilyKeys keys = all_keys(family);
  for (const auto& [key, value] : config.members()) {
    const bool is_null_value = value.is_null();
    if (is_null_value || is_listed(keys.supported, key) || is_neutral_key(keys, key, value) ||
        is_listed(kBookkeeping, key))
      continue;
    const std::vector<std::string> known_names(keys.supported.begin(), keys.supported.end());
    throw UserError(
        "{}: key {} (value {}) is not known for model_type {}; remove it if the model does not "
        "depend on it{}",
        config.location(), in_quotes(key), quoted_json(value.raw()), text(family),
        did_you_mean(key, known_names));
  }
}

}  // namespace optimus
