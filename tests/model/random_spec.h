// Small valid models of every family with all options; a pure function of the seed.
#pragma once

#include <random>

#include "model/family.h"
#include "model/spec.h"

namespace optimus {

inline ModelSpec random_spec(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
  };
  const auto coin = [&] { return below(2) == 1; };
  std::uint64_t num_dense = 0;
  for (const FamilyTraits& family : all_families()) num_dense += !family.is_mixture;
  const FamilyTraits& fixed = all_families()[seed % num_dense];
  ModelSpec spec = blank_spec(fixed.family);
  spec.name = "random-" + std::to_string(seed);
  spec.layers = 1 + below(4);
  spec.kv_heads = 1 + below(4);
  spec.heads = spec.kv_heads * (fixed.has_grouped_heads ? 1 + below(3) : 1);
  spec.head_dim = 2 * (1 + below(8));
  spec.hidden = spec.heads * spec.head_dim;
  if (fixed.has_independent_head_dim && coin()) spec.hidden = spec.heads * 2 * (1 + below(8));
  spec.ffn = 1 + below(64);
  spec.vocab = 1 + below(200);
  spec.max_positions = 1 + below(64);
  spec.token_types = spec.is_bert() ? 1 + below(3) : 0;
  constexpr Activation kAll[] = {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu};
  spec.activation = kAll[below(4)];
  spec.norm_eps = coin() ? 1e-5 : 1e-6;
  spec.init_range = coin() ? 0.02 : 0.006;
  spec.is_tied = spec.is_bert() || coin();
  spec.attention_dropout = coin() ? 0.1 : 0;
  if (!fixed.is_gated) spec.hidden_dropout = spec.embedding_dropout = coin() ? 0.1 : 0;
  if (fixed.family == Family::gpt2 && coin()) spec.embedding_dropout = 0.25;
  if (fixed.family == Family::llama || fixed.family == Family::qwen3)
    spec.has_qkv_bias = spec.has_out_bias = coin();
  if (fixed.family == Family::llama) spec.has_mlp_bias = coin();
  if (fixed.positions == PositionKind::rope) {
    spec.rope_theta = coin() ? 10000 : 123456.5;
    const std::int64_t kind = below(3);
    if (kind == 1) spec.rope_scaling = {.kind = RopeScalingKind::linear, .factor = 2.5};
    if (kind == 2) spec.rope_scaling = {RopeScalingKind::llama3, 8, 1, 4, 1 + below(32)};
  }
  return spec;
}

// The same for mixtures of experts.
inline ModelSpec random_mixture(std::uint64_t seed) {
  constexpr Family kMixtures[] = {Family::mixtral, Family::qwen3_moe, Family::deepseek_v3};
  const Family family = kMixtures[seed % 3];
  ModelSpec dense;  // a Llama-like model without biases; any shape is suitable
  for (std::uint64_t other = seed * 1000; !(dense.family == Family::mistral); ++other)
    dense = random_spec(other);
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
  };
  ModelSpec spec = dense;
  spec.family = family, spec.has_qk_norm = traits(family).has_qk_norm;
  spec.name = "random-mixture-" + std::to_string(seed);
  Mixture& m = spec.mixture;
  m.experts = 2 + below(6), m.experts_per_token = 1 + below(m.experts);
  m.ffn = family == Family::mixtral ? spec.ffn : 1 + below(30);
  m.balance_loss = family == Family::deepseek_v3 ? 0 : 0.01;
  if (family == Family::qwen3_moe) {
    m.normalizes_weights = below(2) == 1, m.layer_interval = 1 + below(spec.layers);
    m.first_layer = m.layer_interval == 1 ? below(spec.layers) : 0;
    spec.has_qkv_bias = spec.has_out_bias = below(2) == 1;
  }
  if (family == Family::deepseek_v3) {
    spec.kv_heads = spec.heads, spec.rope_scaling = {}, spec.head_dim = 4 + 2 * below(6);
    spec.latent = {
        .query_rank = 1 + below(20), .kv_rank = 1 + below(20), .rope_dim = 2, .value_dim = 1 + below(9)};
    m.shared_ffn = m.ffn * (1 + below(3)), m.first_layer = below(spec.layers);
    m.groups = m.experts % 2 == 0 ? 2 : 1, m.groups_per_token = 1 + below(m.groups), m.scale = 1.5;
  }
  return spec;
}

}  // namespace optimus
