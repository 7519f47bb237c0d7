// Small valid models of every family, all options exercised; a pure function of the seed.
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
  const FamilyTraits& fixed = all_families()[seed % all_families().size()];
  ModelSpec spec = blank_spec(fixed.family);
  spec.name = "random-" + std::to_string(seed);
  spec.layers = 1 + below(4);
  spec.kv_heads = 1 + below(4);
  spec.heads = spec.kv_heads * (fixed.has_grouped_heads ? 1 + below(3) : 1);
  spec.head_dim = 2 * (1 + below(8));
  spec.hidden = spec.heads * spec.head_dim;
  if (fixed.has_own_head_dim && coin()) spec.hidden = spec.heads * 2 * (1 + below(8));
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

}  // namespace optimus
