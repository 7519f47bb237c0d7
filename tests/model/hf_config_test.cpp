// config.json files as published, as written by this project, and invalid ones.
#include "model/hf_config.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "model/presets.h"
#include "model/random_spec.h"

namespace optimus {
namespace {

ModelSpec read(const std::string& text) {
  return spec_from_hf_config(parse_json(text, "config.json"), "config.json");
}

// A small config of each family, which tests extend or reduce.
Json base_config(Family family) {
  switch (family) {
    case Family::gpt2:
      return {{"model_type", "gpt2"}, {"vocab_size", 100}, {"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}};
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
    case Family::bert:
    case Family::megatron_bert:
    case Family::mixtral:
    case Family::qwen3_moe:
    case Family::deepseek_v3:
      break;
  }
  return {{"model_type", text(family)},   {"vocab_size", 100},        {"hidden_size", 32},
          {"num_hidden_layers", 2},       {"num_attention_heads", 4}, {"intermediate_size", 64},
          {"max_position_embeddings", 64}};
}

std::string error_of(const Json& config) {
  try {
    spec_from_hf_config(config, "config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::string error_with(Family family, const char* key, const Json& value) {
  Json config = base_config(family);
  if (family != Family::gpt2 && family != Family::bert && family != Family::megatron_bert)
    config["num_key_value_heads"] = 2;
  config[key] = value;
  return error_of(config);
}

TEST(HfConfig, Gpt2AsOnTheHub) {
  const ModelSpec spec = read(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
    "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true,
    "max_length": 50}}, "vocab_size": 50257})");
  ModelSpec expected = *find_preset("gpt2");
  expected.name = "";
  EXPECT_EQ(spec, expected);
}

TEST(HfConfig, Llama31AsOnTheHub) {
  const ModelSpec spec = read(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
    "use_cache": true, "vocab_size": 128256})");
  ModelSpec expected = *find_preset("llama3.1-8b");
  expected.name = "";
  EXPECT_EQ(spec, expected);
}

TEST(HfConfig, Qwen25AndQwen3AsOnTheHub) {
  ModelSpec expected = *find_preset("qwen2.5-0.5b");
  expected.name = "";
  EXPECT_EQ(read(R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
    "vocab_size": 151936})"),
            expected);
  expected = *find_preset("qwen3-0.6b");
  expected.name = "";
  EXPECT_EQ(read(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})"),
            expected);
}

TEST(HfConfig, BertAsOnTheHub) {
  const ModelSpec spec = read(R"({
    "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
    "num_hidden_layers": 12, "pad_token_id": 0, "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522})");
  ModelSpec expected = *find_preset("bert-base");
  expected.name = "";
  EXPECT_EQ(spec, expected);
}

TEST(HfConfig, RejectsActiveMistralWindow) {
  const char* text = R"({{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": {}, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, {} "vocab_size": 32000}})";
  const auto config = [&](int positions, const char* window) {
    return parse_json(fmt::format(fmt::runtime(text), positions, window), "config.json");
  };
  EXPECT_EQ(
      error_of(config(32768, "\"sliding_window\": 4096,")),
      "config.json: sliding_window: expected null or at least 32768 (max_position_embeddings), got 4096 "
      "(not supported)");
  EXPECT_NE(error_of(config(32768, "")), "");  // transformers defaults to 4096
  EXPECT_EQ(error_of(config(4096, "\"sliding_window\": 4096,")), "");
  ModelSpec expected = *find_preset("mistral-7b");
  expected.name = "";
  EXPECT_EQ(spec_from_hf_config(config(32768, "\"sliding_window\": null,"), ""), expected);
}

TEST(HfConfig, IgnoresInactiveQwenWindows) {
  Json config = base_config(Family::qwen2);
  config["num_key_value_heads"] = 2;
  config["use_sliding_window"] = true;
  config["sliding_window"] = 16;
  EXPECT_EQ(error_of(config), "");  // the window applies from layer 28 on, which does not exist
  config["max_window_layers"] = 1;
  EXPECT_NE(error_of(config), "");
  config["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(error_of(config), "");
  config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(
      error_of(config),
      "config.json: layer_types[1]: expected 'full_attention', got 'sliding_attention' (not supported)");
}

TEST(HfConfig, OldAndNewRopeAreEquivalent) {
  Json old_form = base_config(Family::llama), new_form = old_form, both = old_form;
  const Json scaling = {{"type", "linear"}, {"factor", 2}};
  const Json parameters = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  old_form["rope_theta"] = 5e5, old_form["rope_scaling"] = scaling;
  new_form["rope_parameters"] = parameters;
  both.update(old_form), both.update(new_form);
  const ModelSpec spec = spec_from_hf_config(old_form, "");
  EXPECT_EQ(spec.rope_theta, 5e5);
  EXPECT_EQ(spec.rope_scaling.kind, RopeScalingKind::linear);
  EXPECT_EQ(spec_from_hf_config(new_form, ""), spec);
  EXPECT_EQ(spec_from_hf_config(both, ""), spec);
  both["rope_parameters"]["factor"] = 3;
  EXPECT_EQ(error_of(both), "config.json: rope_scaling and rope_parameters differ; keep one of them");
}

TEST(HfConfig, RejectsUnsupportedRopes) {
  const auto rope_error = [](const Json& scaling) {
    return error_with(Family::llama, "rope_scaling", scaling);
  };
  EXPECT_EQ(rope_error({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}),
            "config.json: rope_scaling.rope_type: expected default, linear or llama3, got 'yarn'");
  for (const char* kind : {"dynamic", "longrope", "su", "mrope", ""})
    EXPECT_NE(rope_error({{"type", kind}, {"factor", 2}}), "") << kind;
  EXPECT_NE(rope_error({{"type", "linear"}}), "");
  EXPECT_NE(rope_error({{"type", "linear"}, {"factor", 2}, {"mscale", 1}}), "");
  EXPECT_NE(rope_error({{"type", "linear"}, {"factor", 2}, {"partial_rotary_factor", 0.5}}), "");
  EXPECT_NE(rope_error({{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 2}}), "");
  EXPECT_NE(rope_error("linear"), "");
  EXPECT_EQ(rope_error(Json::object()), "");
  Json config = base_config(Family::llama);
  config["rope_theta"] = 1e4;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(error_of(config),
            "config.json: rope_theta is 10000, but rope_parameters has 1000000; keep one of them");
}

TEST(HfConfig, RejectsUnsupportedKeys) {
  EXPECT_EQ(error_with(Family::gpt2, "scale_attn_by_inverse_layer_idx", true),
            "config.json: scale_attn_by_inverse_layer_idx: expected false or an absent key, got 'true' (not "
            "supported)");
  EXPECT_EQ(error_with(Family::qwen3, "num_experts", 128),
            "config.json: key 'num_experts' (value '128') is not known for model_type qwen3; remove it if "
            "the model "
            "does not depend on it");
  EXPECT_EQ(error_with(Family::llama, "hidden_act", "quick_gelu"),
            "config.json: hidden_act: expected one of gelu, gelu_python, gelu_new, gelu_pytorch_tanh, "
            "gelu_python_tanh, silu, swish, relu, got 'quick_gelu'");
  EXPECT_EQ(error_with(Family::llama, "model_type", "mamba"),
            "config.json: model_type: expected one of gpt2, llama, mistral, qwen2, qwen3, bert, "
            "megatron-bert, mixtral, qwen3_moe, deepseek_v3, got 'mamba'");
  EXPECT_NE(error_with(Family::gpt2, "reorder_and_upcast_attn", true), "");
  EXPECT_NE(error_with(Family::gpt2, "scale_attn_weights", false), "");
  EXPECT_NE(error_with(Family::gpt2, "add_cross_attention", true), "");
  EXPECT_NE(error_with(Family::bert, "position_embedding_type", "relative_key"), "");
  EXPECT_NE(error_with(Family::bert, "is_decoder", true), "");
  EXPECT_NE(error_with(Family::bert, "tie_word_embeddings", false), "");
  EXPECT_NE(error_with(Family::llama, "quantization_config", {{"bits", 4}}), "");
  EXPECT_NE(error_with(Family::llama, "hidden_sizes", 32), "");
  EXPECT_NE(error_with(Family::mistral, "attention_bias", true), "");
  EXPECT_EQ(error_with(Family::llama, "is_decoder", true), "");
  EXPECT_EQ(error_with(Family::llama, "num_experts", nullptr), "");
  EXPECT_EQ(error_with(Family::gpt2, "add_cross_attention", false), "");
}

TEST(HfConfig, RejectsWrongTypesAndMissingDimensions) {
  EXPECT_EQ(error_with(Family::gpt2, "n_head", -3),
            "config.json: n_head: expected an integer from 1 to 1073741824, got '-3'");
  EXPECT_NE(error_with(Family::gpt2, "n_head", "four"), "");
  EXPECT_NE(error_with(Family::gpt2, "n_head", 5), "");
  EXPECT_EQ(error_with(Family::gpt2, "hidden_size", 64),
            "config.json: n_embd and hidden_size differ; keep one of them");
  EXPECT_NE(error_with(Family::llama, "vocab_size", 1e300), "");
  EXPECT_NE(error_with(Family::llama, "attention_bias", "yes"), "");
  EXPECT_NE(error_with(Family::llama, "layer_types", 3), "");
  Json config = base_config(Family::llama);
  config.erase("hidden_size");
  EXPECT_EQ(error_of(config), "config.json: hidden_size is missing");
  EXPECT_NE(error_of(Json::array()), "");
  EXPECT_NE(error_of(Json::object()), "");
}

TEST(HfConfig, AbsentKeysUseTransformersDefaults) {
  Json config = base_config(Family::qwen3);
  config["num_attention_heads"] = 32;
  EXPECT_EQ(spec_from_hf_config(config, "").kv_heads, 32);
  EXPECT_EQ(spec_from_hf_config(config, "").head_dim, 128);
  config = base_config(Family::llama);
  EXPECT_EQ(spec_from_hf_config(config, "").kv_heads, 4);
  EXPECT_EQ(spec_from_hf_config(config, "").head_dim, 8);
  EXPECT_FALSE(spec_from_hf_config(config, "").is_tied);
  config = base_config(Family::mistral);
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(spec_from_hf_config(config, "").kv_heads, 4);
  EXPECT_TRUE(spec_from_hf_config(base_config(Family::gpt2), "").is_tied);
  config = base_config(Family::gpt2);
  config.erase("n_embd"), config["hidden_size"] = 32, config["max_position_embeddings"] = 77;
  EXPECT_EQ(spec_from_hf_config(config, "").ffn, 128);
  EXPECT_EQ(spec_from_hf_config(config, "").max_positions, 77);
}

TEST(HfConfig, RoundTrips) {
  for (const std::string& name : preset_names()) {
    const ModelSpec spec = *find_preset(name);
    EXPECT_EQ(read(hf_config_from_spec(spec).dump()), spec) << name;
  }
  for (std::uint64_t seed = 0; seed < 700; ++seed) {
    ModelSpec spec = random_spec(seed);
    EXPECT_EQ(read(hf_config_from_spec(spec).dump(2)), spec) << seed;
    const ModelSpec mixture = random_mixture(seed);
    EXPECT_EQ(read(hf_config_from_spec(mixture).dump(2)), mixture) << seed;
  }
}

TEST(HfConfig, NamesModelAfterFolder) {
  const Path folder = Path(testing::TempDir()) / "my-model";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << hf_config_from_spec(*find_preset("gpt2")).dump();
  EXPECT_EQ(read_hf_config(folder).name, "my-model");
  EXPECT_EQ(read_hf_config(folder / "").name, "my-model");
  EXPECT_EQ(read_hf_config(folder / "config.json").layers, 12);
  std::ofstream(folder / "config.json") << "{\"model_type\": ";
  EXPECT_THROW(read_hf_config(folder), UserError);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(read_hf_config(folder), UserError);
}

}  // namespace
}  // namespace optimus
