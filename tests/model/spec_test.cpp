// Valid and invalid model specs.
#include "model/spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "model/presets.h"
#include "model/random_spec.h"

namespace optimus {
namespace {

std::string error_of(const ModelSpec& spec) {
  try {
    validate(spec);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::string error_with(const char* preset, const std::function<void(ModelSpec&)>& change) {
  ModelSpec spec = *find_preset(preset);
  change(spec);
  return error_of(spec);
}

TEST(Spec, EveryPresetAndEveryRandomSpecIsValid) {
  for (const std::string& name : preset_names()) EXPECT_EQ(error_of(*find_preset(name)), "") << name;
  for (std::uint64_t seed = 0; seed < 700; ++seed) EXPECT_EQ(error_of(random_spec(seed)), "") << seed;
}

TEST(Spec, RejectsInvalidDimensions) {
  EXPECT_EQ(error_with("gpt2", [](auto& s) { s.layers = 0; }),
            "model 'gpt2': layers: expected 1 to 10000, got 0");
  EXPECT_EQ(error_with("gpt2", [](auto& s) { s.vocab = -5; }),
            "model 'gpt2': vocab: expected 1 to 1073741824, got -5");
  EXPECT_EQ(error_with("llama3-8b", [](auto& s) { s.kv_heads = 7; }),
            "model 'llama3-8b': kv-heads: expected a divisor of heads 32, got 7");
  EXPECT_EQ(
      error_with("gpt2", [](auto& s) { s.kv_heads = 4; }),
      "model 'gpt2': kv-heads: expected 12 (heads), got 4; gpt2 does not support grouped-query attention");
  EXPECT_EQ(error_with("gpt2", [](auto& s) { s.head_dim = 32; }),
            "model 'gpt2': head-dim: expected 64 (hidden / heads) in gpt2, got 32");
  EXPECT_EQ(error_with("qwen3-8b", [](auto& s) { s.head_dim = 65; }),
            "model 'qwen3-8b': head-dim: expected an even number for rotary positions, got 65");
  EXPECT_EQ(
      error_with("bert-base", [](auto& s) { s.is_tied = false; }),
      "model 'bert-base': bert uses the word embedding as the output projection, so it cannot be untied");
  EXPECT_EQ(error_with("gpt2", [](auto& s) { s.token_types = 2; }),
            "model 'gpt2': token-types: expected 0, got 2");
}

TEST(Spec, RejectsUnsupportedFamilyFeatures) {
  const std::function<void(ModelSpec&)> changes[] = {
      [](auto& s) { s.norm = NormKind::rms_norm; },
      [](auto& s) { s.norm_position = NormPosition::post; },
      [](auto& s) { s.positions = PositionKind::rope; },
      [](auto& s) { s.is_gated = true; },
      [](auto& s) { s.has_qk_norm = true; },
      [](auto& s) { s.is_causal = false; },
      [](auto& s) { s.has_mlp_bias = false; },
      [](auto& s) { s.rope_scaling.kind = RopeScalingKind::linear; },
  };
  for (const auto& change : changes) EXPECT_NE(error_with("gpt2", change), "");
  EXPECT_NE(error_with("mistral-7b", [](auto& s) { s.has_qkv_bias = true; }), "");
  EXPECT_NE(error_with("qwen2.5-7b", [](auto& s) { s.has_out_bias = true; }), "");
  EXPECT_NE(error_with("llama3-8b", [](auto& s) { s.has_qkv_bias = true; }), "");
}

TEST(Spec, RejectsNumbersOutOfRange) {
  EXPECT_NE(error_with("gpt2", [](auto& s) { s.norm_eps = 0; }), "");
  EXPECT_NE(error_with("gpt2", [](auto& s) { s.norm_eps = std::nan(""); }), "");
  EXPECT_NE(error_with("gpt2", [](auto& s) { s.init_range = -1; }), "");
  EXPECT_NE(error_with("gpt2", [](auto& s) { s.hidden_dropout = 1; }), "");
  EXPECT_NE(error_with("llama3-8b", [](auto& s) { s.rope_theta = INFINITY; }), "");
  EXPECT_NE(error_with("llama3.1-8b", [](auto& s) { s.rope_scaling.factor = 0; }), "");
  EXPECT_NE(error_with("llama3.1-8b", [](auto& s) { s.rope_scaling.low_freq_factor = 4; }), "");
  EXPECT_NE(error_with("llama3.1-8b", [](auto& s) { s.rope_scaling.original_max_positions = 0; }), "");
}

TEST(Spec, RejectsTooManyParameters) {
  const std::string why = error_with("llama3-8b", [](auto& s) { s.ffn = s.vocab = 1 << 30; });
  EXPECT_EQ(why, "");  // 4e14: unrealistic, but supported
  EXPECT_NE(error_with("qwen3-8b", [](auto& s) { s.hidden = s.ffn = 1 << 30; }), "");
}

TEST(Spec, DependentOverridesAreDerived) {
  const ModelSpec gpt2 = *find_preset("gpt2");
  const ModelSpec small = with_overrides(gpt2, {.layers = 4, .hidden = 96, .heads = 6, .vocab = 257});
  EXPECT_EQ(small.head_dim, 16);
  EXPECT_EQ(small.kv_heads, 6);
  EXPECT_EQ(small.ffn, 384);
  EXPECT_EQ(small.vocab, 257);
  EXPECT_EQ(with_overrides(gpt2, {.hidden = 96, .ffn = 100}).ffn, 100);
  const ModelSpec llama =
      with_overrides(*find_preset("llama3-8b"), {.hidden = 64, .heads = 8, .kv_heads = 2});
  EXPECT_EQ(llama.ffn, 14336);
  EXPECT_EQ(llama.head_dim, 8);
  EXPECT_EQ(llama.kv_heads, 2);
  const ModelSpec qwen =
      with_overrides(*find_preset("qwen3-8b"), {.heads = 8, .head_dim = 20, .is_tied = true});
  EXPECT_EQ(qwen.head_dim, 20);
  EXPECT_EQ(qwen.kv_heads, 8);
  EXPECT_TRUE(qwen.is_tied);
  EXPECT_EQ(with_overrides(gpt2, {}), gpt2);
}

TEST(Spec, RejectsInconsistentOverrides) {
  const ModelSpec gpt2 = *find_preset("gpt2");
  EXPECT_THROW(with_overrides(gpt2, {.heads = 7}), UserError);
  EXPECT_THROW(with_overrides(gpt2, {.heads = 0}), UserError);
  EXPECT_THROW(with_overrides(gpt2, {.hidden = INT64_MAX, .head_dim = 64}), UserError);
  EXPECT_THROW(with_overrides(gpt2, {.kv_heads = 3}), UserError);
  EXPECT_THROW(with_overrides(*find_preset("llama3-8b"), {.heads = 6}), UserError);
}

}  // namespace
}  // namespace optimus
