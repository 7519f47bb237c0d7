// Reads the model from a Megatron-LM command line. The flags either describe the model completely or modify a
// model that the user names. import_megatron.cpp handles the other flags.
#include "plan/import_megatron.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/presets.h"

namespace optimus {
namespace {

// The model family whose blocks the flags describe, or nullopt if no family matches.
std::optional<Family> family_of(ArgumentList& flags, bool is_bert) {
  const std::string norm = flags.text("--normalization").value_or("LayerNorm");
  const bool is_rotary = flags.text("--position-embedding-type").value_or("") == "rope" ||
                         flags.has_flag("--use-rotary-position-embeddings");
  const bool is_gated = flags.has_flag("--swiglu");
  const bool has_qk_norm = flags.has_flag("--qk-layernorm");
  const bool has_qkv_bias = flags.has_flag("--add-qkv-bias");
  if (is_bert) return Family::megatron_bert;
  if (norm == "RMSNorm" && is_rotary && is_gated)
    return has_qk_norm ? Family::qwen3 : has_qkv_bias ? Family::qwen2 : Family::llama;
  if (norm == "LayerNorm" && !is_rotary && !is_gated && !has_qk_norm) return Family::gpt2;
  return std::nullopt;
}

// A preset of the family, from which an imported model takes its fixed properties.
const char* example_of(Family family) {
  if (family == Family::gpt2) return "gpt3-125m";
  if (family == Family::qwen2) return "qwen2-7b";
  if (family == Family::qwen3) return "qwen3-8b";
  if (family == Family::megatron_bert) return "megatron-bert-345m";
  return "llama2-7b";
}

void read_rope(ArgumentList& flags, ModelSpec& model, bool has_named_model) {
  if (model.positions != PositionKind::rope) return;
  const auto base = flags.count("--rotary-base");
  if (base || !has_named_model) model.rope_theta = static_cast<double>(base.value_or(10000));
  if (!has_named_model) model.rope_scaling = {};
  const bool is_scaled = flags.has_flag("--use-rope-scaling");
  const double factor = flags.number("--rope-scaling-factor").value_or(8);
  if (is_scaled) model.rope_scaling = {RopeScalingKind::llama3, factor, 1, 4, 8192};
  if (const auto linear = flags.count("--rotary-seq-len-interpolation-factor"))
    model.rope_scaling = {RopeScalingKind::linear, static_cast<double>(*linear), 1, 4, 0};
}

void read_biases(ArgumentList& flags, ModelSpec& model, bool has_named_model) {
  const bool has_all = !flags.has_flag("--disable-bias-linear"), has_qkv = flags.has_flag("--add-qkv-bias");
  if (has_named_model && has_all) return;
  model.has_out_bias = model.has_mlp_bias = has_all;
  model.has_qkv_bias = has_all || has_qkv;
}

// Further model properties from flags. Megatron-LM's defaults apply if the user did not name a model.
void read_model_options(ArgumentList& flags, ModelSpec& model, bool has_named_model) {
  const auto set = [&](const std::string& flag, double& target, double default_value) {
    const std::optional<double> value = flags.number(flag);
    if (value || !has_named_model) target = value.value_or(default_value);
  };
  set("--norm-epsilon", model.norm_eps, 1e-5);
  read_rope(flags, model, has_named_model);
  read_biases(flags, model, has_named_model);
  const bool is_untied = flags.has_flag("--untie-embeddings-and-output-weights");
  if (is_untied || !has_named_model) model.is_tied = !is_untied;
  set("--init-method-std", model.init_range, 0.02);
  set("--attention-dropout", model.attention_dropout, 0.1);
  set("--hidden-dropout", model.hidden_dropout, 0.1);
  if (flags.has_flag("--hidden-dropout") || !has_named_model) model.embedding_dropout = model.hidden_dropout;
}

std::int64_t vocabulary_of(ArgumentList& flags, const std::string& source) {
  if (const auto size = flags.count("--vocab-size")) return *size;
  const std::string tokenizer = flags.text("--tokenizer-type").value_or("");
  if (tokenizer == "GPT2BPETokenizer") return 50257;
  if (tokenizer == "Llama2Tokenizer") return 32000;
  throw UserError("{}: the vocabulary size is missing; specify --vocab N or --model M", source);
}

// The name of the preset with the shape of `model`, or "".
std::string preset_name(const ModelSpec& model) {
  for (const std::string& name : preset_names()) {
    ModelSpec preset = *find_preset(name);
    preset.name = model.name;
    if (preset.family == Family::mistral) preset.family = Family::llama;
    if (preset == model) return name;
  }
  return "";
}

// Reads the dimensions, for named models and for models described by flags.
void read_dimensions(ArgumentList& flags, ModelSpec& model, bool has_named_model) {
  const auto set = [&](const std::string& flag, std::int64_t& target) {
    if (const auto value = flags.count(flag)) target = *value;
  };
  set("--num-layers", model.layers);
  const std::int64_t hidden = model.hidden, heads = model.heads;
  set("--hidden-size", model.hidden);
  set("--num-attention-heads", model.heads);
  const bool has_other_shape = !has_named_model || model.hidden != hidden || model.heads != heads;
  if (has_other_shape) {
    model.kv_heads = model.heads;
    model.head_dim = model.hidden / std::max<std::int64_t>(1, model.heads);
    model.ffn = model.is_gated ? model.hidden * 8 / 3 / 64 * 64 : 4 * model.hidden;
  }
  std::int64_t groups = model.kv_heads;
  set("--num-query-groups", groups);
  if (flags.has_flag("--group-query-attention")) model.kv_heads = groups;
  set("--kv-channels", model.head_dim);
  set("--ffn-hidden-size", model.ffn);
  set("--max-position-embeddings", model.max_positions);
}

ModelSpec model_from_flags(ArgumentList& flags, const std::string& source, const ImportRequest& request,
                           bool is_bert) {
  const std::optional<Family> family = family_of(flags, is_bert);
  if (!family)
    throw UserError(
        "{}: no supported model family has this combination of normalization, positions and activation; "
        "specify --model M",
        source);
  for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads"})
    if (!flags.has_flag(flag))
      throw UserError("{}: {} is missing; add it, or specify --model M", source, flag);
  ModelSpec model = *find_preset(example_of(*family));
  model.name = "imported";
  read_dimensions(flags, model, false);
  model.vocab = request.vocab ? *request.vocab : vocabulary_of(flags, source);
  read_model_options(flags, model, false);
  if (const std::string name = preset_name(model); !name.empty()) model.name = name;
  return model;
}

// Expert settings come from --model. Adds a note for each flag that differs from them.
void note_moe_options(ArgumentList& flags, const ModelSpec& model, std::vector<std::string>& notes) {
  const Mixture& m = model.mixture;
  for (const auto& [flag, model_value] : {std::pair{"--num-experts", m.experts},
                                          {"--moe-router-topk", m.experts_per_token},
                                          {"--moe-ffn-hidden-size", m.ffn},
                                          {"--moe-shared-expert-intermediate-size", m.shared_ffn}})
    if (const auto value = flags.count(flag); value && *value != model_value)
      notes.push_back(fmt::format("{} {} is not applied because --model selects {}, which has {}", flag,
                                  *value, model.name, model_value));
  for (const char* flag :
       {"--moe-layer-freq", "--moe-grouped-gemm", "--moe-token-dispatcher-type", "--moe-aux-loss-coeff",
        "--moe-router-load-balancing-type", "--moe-router-pre-softmax", "--moe-router-num-groups",
        "--moe-router-group-topk", "--moe-router-topk-scaling-factor", "--moe-router-score-function",
        "--moe-router-enable-expert-bias", "--multi-latent-attention", "--q-lora-rank", "--kv-lora-rank",
        "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim"})
    (void)flags.has_flag(flag);
  if (const auto width = flags.count("--expert-tensor-parallel-size"); width && *width > 1)
    notes.push_back(
        fmt::format("experts are not split; --expert-tensor-parallel-size {} is not applied", *width));
}

bool is_valid(const ModelSpec& model) {
  try {
    validate(model);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

// The model that the user names, with the dimensions from the flags. The flags do not change the structure of
// its blocks.
ModelSpec named_model(ArgumentList& flags, const std::string& source, const ImportRequest& request,
                      bool is_bert, std::vector<std::string>& notes) {
  ModelSpec model = *request.model;
  if (model.is_custom())
    throw UserError("{}: {} is a model of custom blocks, which Megatron-LM does not support", source,
                    model.name);
  const auto note = [&](const char* flag) {
    notes.push_back(fmt::format("{} is not applied because --model selects {}", flag, model.name));
  };
  const bool specifies_family = flags.has_flag("--normalization") ||
                                flags.has_flag("--position-embedding-type") || flags.has_flag("--swiglu") ||
                                flags.has_flag("--qk-layernorm") ||
                                flags.has_flag("--use-rotary-position-embeddings");
  const std::optional<Family> family = family_of(flags, is_bert);
  const bool is_llama = model.family == Family::mistral || model.family == Family::mixtral;
  if (specifies_family && !model.is_mixture() && family != (is_llama ? Family::llama : model.family))
    notes.push_back(
        fmt::format("normalization, positions, activation and biases come from {} (--model), "
                    "not from the flags",
                    model.name));
  read_dimensions(flags, model, true);
  if (const auto vocab = flags.count("--vocab-size")) model.vocab = *vocab;
  if (request.vocab) model.vocab = *request.vocab;
  for (const char* flag : {"--rotary-base", "--use-rope-scaling", "--rotary-seq-len-interpolation-factor"})
    if (model.positions != PositionKind::rope && flags.has_flag(flag)) note(flag);
  const ModelSpec previous_spec = model;
  read_model_options(flags, model, true);
  if (!is_valid(model) && is_valid(previous_spec)) {
    // Biases are a fixed property of the family.
    model.has_out_bias = previous_spec.has_out_bias, model.has_mlp_bias = previous_spec.has_mlp_bias;
    model.has_qkv_bias = previous_spec.has_qkv_bias;
    note("--disable-bias-linear");
  }
  if (flags.has_flag("--num-experts")) note_moe_options(flags, model, notes);
  return model;
}

}  // namespace

ModelSpec imported_model(ArgumentList& flags, const std::string& source, const ImportRequest& request,
                         bool is_bert, std::vector<std::string>& notes) {
  if (flags.has_flag("--num-experts") && !(request.model && request.model->is_mixture()))
    throw UserError(
        "{}: --num-experts: the flags do not fully describe an MoE model; specify --model M, or remove the "
        "flag to plan the dense part",
        source);
  const ModelSpec model = request.model ? named_model(flags, source, request, is_bert, notes)
                                        : model_from_flags(flags, source, request, is_bert);
  try {
    validate(model);
  } catch (const UserError& error) {
    throw UserError("{}: {}", source, error.what());
  }
  return model;
}

}  // namespace optimus
