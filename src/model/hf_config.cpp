// Implements hf_config.h. The defaults are the same as in the configuration classes of transformers.
#include "model/hf_config.h"

#include "base/error.h"
#include "base/text.h"
#include "model/family.h"
#include "model/hf_config_keys.h"
#include "model/hf_rope.h"

namespace optimus {
namespace {

constexpr std::int64_t kMaxConfigNumber = std::int64_t{1} << 30;
constexpr Bytes kMaxFileBytes{std::int64_t{16} << 20};

struct ActivationName {
  std::string_view name;
  Activation activation;
};

constexpr ActivationName kActivations[] = {
    {"gelu", Activation::gelu},
    {"gelu_python", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_python_tanh", Activation::gelu_tanh},
    {"silu", Activation::silu},
    {"swish", Activation::silu},
    {"relu", Activation::relu},
};

Activation read_activation(const JsonView& config, std::string_view key, Activation default_value) {
  const auto value = config.find(key);
  if (!value) return default_value;
  std::vector<std::string> known_names;
  for (const ActivationName& row : kActivations) {
    if (row.name == value->text()) return row.activation;
    known_names.emplace_back(row.name);
  }
  throw UserError("{}: expected one of {}, got {}", value->location(), join(known_names, ", "),
                  in_quotes(value->text()));
}

// Returns a dimension that may be under either of two keys.
JsonView either_of(const JsonView& config, std::string_view name, std::string_view other_name) {
  const auto first = config.find(name), second = config.find(other_name);
  if (first && second && first->raw() != second->raw())
    throw UserError("{} and {} differ; keep one of them", first->location(), other_name);
  if (second && !first) return *second;
  return config.at(name);
}

std::int64_t read_dimension(const JsonView& value) { return value.integer(1, kMaxConfigNumber); }

std::int64_t read_dimension_or(const JsonView& config, std::string_view key, std::int64_t default_value) {
  const auto value = config.find(key);
  return value ? read_dimension(*value) : default_value;
}

Family read_family(const JsonView& config) {
  const JsonView model_type = config.at("model_type");
  std::vector<std::string> known_names;
  for (const FamilyTraits& row : all_families()) {
    if (row.model_type == model_type.text()) return row.family;
    known_names.emplace_back(row.model_type);
  }
  throw UserError("{}: expected one of {}, got {}", model_type.location(), join(known_names, ", "),
                  in_quotes(model_type.text()));
}

void read_gpt2(const JsonView& config, ModelSpec& spec) {
  spec.layers = read_dimension(either_of(config, "n_layer", "num_hidden_layers"));
  spec.hidden = read_dimension(either_of(config, "n_embd", "hidden_size"));
  spec.heads = spec.kv_heads = read_dimension(either_of(config, "n_head", "num_attention_heads"));
  spec.head_dim = spec.hidden / spec.heads;
  spec.ffn = read_dimension_or(config, "n_inner", 4 * spec.hidden);
  const bool has_positions = config.find("n_positions") || config.find("max_position_embeddings");
  spec.max_positions =
      has_positions ? read_dimension(either_of(config, "n_positions", "max_position_embeddings")) : 1024;
  spec.norm_eps = config.number_or("layer_norm_epsilon", 1e-5);
  spec.activation = read_activation(config, "activation_function", Activation::gelu_tanh);
  spec.embedding_dropout = config.number_or("embd_pdrop", 0.1);
  spec.hidden_dropout = config.number_or("resid_pdrop", 0.1);
  spec.attention_dropout = config.number_or("attn_pdrop", 0.1);
}

void read_bert(const JsonView& config, ModelSpec& spec) {
  spec.layers = read_dimension(config.at("num_hidden_layers"));
  spec.hidden = read_dimension(config.at("hidden_size"));
  spec.heads = spec.kv_heads = read_dimension(config.at("num_attention_heads"));
  spec.head_dim = spec.hidden / spec.heads;
  spec.ffn = read_dimension(config.at("intermediate_size"));
  spec.max_positions = read_dimension_or(config, "max_position_embeddings", 512);
  spec.token_types = read_dimension_or(config, "type_vocab_size", 2);
  spec.norm_eps = config.number_or("layer_norm_eps", 1e-12);
  spec.activation = read_activation(config, "hidden_act", Activation::gelu);
  spec.embedding_dropout = spec.hidden_dropout = config.number_or("hidden_dropout_prob", 0.1);
  spec.attention_dropout = config.number_or("attention_probs_dropout_prob", 0.1);
}

// Defaults for absent keys of Llama-like families. 0 means that the default is derived from other dimensions.
struct LlamaDefaults {
  std::int64_t max_positions, kv_heads, head_dim;
};

LlamaDefaults llama_defaults(Family family) {
  switch (family) {
    case Family::mistral:
      return {131072, 8, 0};
    case Family::qwen2:
      return {32768, 32, 0};
    case Family::qwen3:
      return {32768, 32, 128};
    case Family::mixtral:
      return {131072, 8, 0};
    case Family::qwen3_moe:
      return {32768, 4, 0};
    case Family::deepseek_v3:
      return {4096, 0, 0};
    case Family::llama:
    case Family::gpt2:
    case Family::bert:
    case Family::megatron_bert:
      return {2048, 0, 0};
  }
  return {};
}

// Accepts a sliding window only if it covers max_position_embeddings. A smaller window would change the
// computation.
void reject_active_window(const JsonView& config, const ModelSpec& spec) {
  const bool is_qwen =
      spec.family == Family::qwen2 || spec.family == Family::qwen3 || spec.family == Family::qwen3_moe;
  if (!is_qwen && spec.family != Family::mistral && spec.family != Family::mixtral) return;
  if (const auto types = is_qwen ? config.find("layer_types") : std::nullopt) {
    for (const JsonView& type : types->elements())
      if (type.text() != "full_attention")
        throw UserError("{}: expected 'full_attention', got {} (not supported)", type.location(),
                        in_quotes(type.text()));
    return;
  }
  if (is_qwen && !config.boolean_or("use_sliding_window", false)) return;
  const bool begins_after_last_layer = config.integer_or("max_window_layers", 28) >= spec.layers;
  if (is_qwen && begins_after_last_layer) return;
  const bool is_absent = !config.raw().contains("sliding_window");
  if (is_absent && spec.family == Family::mixtral) return;  // Mixtral has no window by default
  const auto explicit_window = config.find("sliding_window");
  if (!is_absent && !explicit_window) return;
  const std::int64_t window = explicit_window ? explicit_window->integer(1) : 4096;
  if (window < spec.max_positions)
    throw UserError(
        "{}: sliding_window: expected null or at least {} (max_position_embeddings), got {}{} (not "
        "supported)",
        config.location(), spec.max_positions, window, is_absent ? " by default" : "");
}

// Returns the number of dense layers for configs that list them individually. They must be the first layers.
std::int64_t read_dense_layers(const JsonView& config) {
  std::int64_t next = 0;
  if (const auto dense = config.find("mlp_only_layers"))
    for (const JsonView& layer : dense->elements())
      if (layer.integer(0, kMaxConfigNumber) != next++)
        throw UserError("{}: expected the first layers (0, 1, …) as dense layers, got {} (not supported)",
                        layer.location(), layer.integer(0, kMaxConfigNumber));
  return next;
}

void read_mixture(const JsonView& config, ModelSpec& spec) {
  Mixture& m = spec.mixture;
  m.balance_loss = config.number_or("router_aux_loss_coef", 0.001);
  if (spec.family == Family::deepseek_v3) {
    m.experts = config.find("n_routed_experts") || config.find("num_local_experts")
                    ? read_dimension(either_of(config, "n_routed_experts", "num_local_experts"))
                    : 256;
    m.experts_per_token = read_dimension_or(config, "num_experts_per_tok", 8);
    m.ffn = read_dimension_or(config, "moe_intermediate_size", 2048);
    m.shared_ffn = m.ffn * std::min<std::int64_t>(read_dimension_or(config, "n_shared_experts", 1), 1000);
    m.first_layer = config.integer_or("first_k_dense_replace", 3);
    m.groups = read_dimension_or(config, "n_group", 8),
    m.groups_per_token = read_dimension_or(config, "topk_group", 4);
    m.scale = config.number_or("routed_scaling_factor", 2.5);
    m.normalizes_weights = config.boolean_or("norm_topk_prob", true);
    m.balance_loss = 0;
  } else if (spec.family == Family::mixtral) {
    m.experts = config.find("num_local_experts") || config.find("num_experts")
                    ? read_dimension(either_of(config, "num_local_experts", "num_experts"))
                    : 8;
    m.experts_per_token = read_dimension_or(config, "num_experts_per_tok", 2);
    m.ffn = spec.ffn;
  } else {
    m.experts = config.find("num_experts") || config.find("num_local_experts")
                    ? read_dimension(either_of(config, "num_experts", "num_local_experts"))
                    : 128;
    m.experts_per_token = read_dimension_or(config, "num_experts_per_tok", 8);
    m.ffn = read_dimension_or(config, "moe_intermediate_size", 768);
    m.normalizes_weights = config.boolean_or("norm_topk_prob", false);
    m.layer_interval = read_dimension_or(config, "decoder_sparse_step", 1);
    m.first_layer = read_dense_layers(config);
  }
}

void read_latent(const JsonView& config, ModelSpec& spec) {
  LatentAttention& l = spec.latent;
  l.query_rank = read_dimension_or(config, "q_lora_rank", 1536),
  l.kv_rank = read_dimension_or(config, "kv_lora_rank", 512);
  if (config.raw().contains("q_lora_rank") && !config.find("q_lora_rank"))
    throw UserError("{}: q_lora_rank: expected a number, got null (not supported)", config.location());
  l.rope_dim = read_dimension_or(config, "qk_rope_head_dim", 64),
  l.value_dim = read_dimension_or(config, "v_head_dim", 128);
  spec.head_dim = read_dimension_or(config, "qk_nope_head_dim", 128) + l.rope_dim;
  // transformers also writes the rotary width (head_dim) and the total head width (qk_head_dim).
  const auto check_repeated = [&](const char* key, std::int64_t value) {
    if (const std::int64_t found = read_dimension_or(config, key, value); found != value)
      throw UserError("{}: {}: expected {} or an absent key, got {}", config.location(), key, value, found);
  };
  check_repeated("head_dim", l.rope_dim), check_repeated("qk_head_dim", spec.head_dim);
}

void read_llama(const JsonView& config, ModelSpec& spec) {
  const LlamaDefaults defaults = llama_defaults(spec.family);
  spec.layers = read_dimension(config.at("num_hidden_layers"));
  spec.hidden = read_dimension(config.at("hidden_size"));
  spec.heads = read_dimension(config.at("num_attention_heads"));
  // A null value means the number of heads.
  const bool has_kv_heads_key = config.raw().contains("num_key_value_heads");
  const std::int64_t default_kv_heads =
      has_kv_heads_key || defaults.kv_heads == 0 ? spec.heads : defaults.kv_heads;
  spec.kv_heads = read_dimension_or(config, "num_key_value_heads", default_kv_heads);
  const std::int64_t default_head_dim = defaults.head_dim > 0 ? defaults.head_dim : spec.hidden / spec.heads;
  spec.head_dim = read_dimension_or(config, "head_dim", default_head_dim);
  spec.ffn = read_dimension(config.at("intermediate_size"));
  spec.max_positions = read_dimension_or(config, "max_position_embeddings", defaults.max_positions);
  spec.norm_eps = config.number_or("rms_norm_eps", spec.family == Family::mixtral ? 1e-5 : 1e-6);
  spec.activation = read_activation(config, "hidden_act", Activation::silu);
  spec.attention_dropout = config.number_or("attention_dropout", 0);
  if (spec.family == Family::llama || spec.family == Family::qwen3 || spec.family == Family::qwen3_moe)
    spec.has_qkv_bias = spec.has_out_bias = config.boolean_or("attention_bias", false);
  if (spec.family == Family::llama) spec.has_mlp_bias = config.boolean_or("mlp_bias", false);
  const RopeSettings rope =
      read_hf_rope(config, spec.max_positions, spec.family == Family::mixtral ? 1e6 : 1e4);
  spec.rope_theta = rope.theta;
  spec.rope_scaling = rope.scaling;
  if (traits(spec.family).is_mixture) read_mixture(config, spec);
  if (traits(spec.family).is_latent) read_latent(config, spec);
  reject_active_window(config, spec);
}

}  // namespace

ModelSpec spec_from_hf_config(const Json& document, const std::string& source) {
  const JsonView config(document, source);
  const Family family = read_family(config);
  reject_unsupported_keys(config, family);
  ModelSpec spec = blank_spec(family);
  spec.name = config.text_or("_name_or_path", "");
  spec.vocab = read_dimension(config.at("vocab_size"));
  spec.is_tied = config.boolean_or("tie_word_embeddings", spec.is_tied);
  spec.init_range = config.number_or("initializer_range", 0.02);
  switch (family) {
    case Family::gpt2:
      read_gpt2(config, spec);
      break;
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
    case Family::mixtral:
    case Family::qwen3_moe:
    case Family::deepseek_v3:
      read_llama(config, spec);
      break;
    case Family::bert:
    case Family::megatron_bert:
      read_bert(config, spec);
      break;
  }
  try {
    validate(spec);
  } catch (const UserError& error) {
    throw UserError("{}: {}", source, error.what());
  }
  return spec;
}

ModelSpec read_hf_config(const Path& path) {
  std::error_code ignored;
  const Path file = std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
  const std::string text = read_input_file(file, kMaxFileBytes);
  ModelSpec spec = spec_from_hf_config(parse_json(text, file.string()), file.string());
  const Path folder = std::filesystem::absolute(file, ignored).lexically_normal().parent_path();
  // A folder name may contain arbitrary bytes, but the name of the spec must be valid JSON text.
  const std::string name =
      Json(folder.filename().string()).dump(-1, ' ', false, Json::error_handler_t::replace);
  spec.name = Json::parse(name).get<std::string>();
  return spec;
}

}  // namespace optimus
