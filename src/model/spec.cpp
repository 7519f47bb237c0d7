// See spec.h.
#include "model/spec.h"

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "model/family.h"

namespace optimus {
namespace {

// These limits are far beyond any real model, but small enough that products of dimensions do not overflow
// and lists of tensors do not become too large.
constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxDimension = std::int64_t{1} << 30;
constexpr double kMaxParameters = 1e17;

std::string model_label(const ModelSpec& spec) {
  return spec.name.empty() ? std::string("model") : "model " + in_quotes(spec.name);
}

void check_ranges(const ModelSpec& spec) {
  struct Range {
    const char* name;
    std::int64_t value, smallest, largest;
  };
  const std::int64_t large = kMaxDimension;
  const Range rows[] = {
      {"layers", spec.layers, 1, kMaxLayers},
      {"hidden", spec.hidden, 1, large},
      {"heads", spec.heads, 1, large},
      {"kv-heads", spec.kv_heads, 1, large},
      {"head-dim", spec.head_dim, 1, large},
      {"ffn", spec.ffn, 1, large},
      {"vocab", spec.vocab, 1, large},
      {"max-positions", spec.max_positions, 1, large},
      {"token-types", spec.token_types, 0, large},
  };
  for (const Range& row : rows)
    if (row.value < row.smallest || row.value > row.largest)
      throw UserError("{}: {}: expected {} to {}, got {}", model_label(spec), row.name, row.smallest,
                      row.largest, row.value);
}

void check_mixture(const ModelSpec& spec) {
  const Mixture& m = spec.mixture;
  if (traits(spec.family).is_mixture != spec.is_mixture())
    throw UserError("{}: experts: expected {} in {}, got {}", model_label(spec),
                    spec.is_mixture() ? "0" : "at least 1", text(spec.family), m.experts);
  if (!spec.is_mixture()) return;
  struct Range {
    const char* name;
    std::int64_t value, smallest, largest;
  };
  constexpr std::int64_t kMaxExperts = 1'000'000;
  const Range rows[] = {
      {"experts", m.experts, 1, kMaxExperts},
      {"experts per token", m.experts_per_token, 1, m.experts},
      {"ffn of each expert", m.ffn, 1, kMaxDimension},
      {"ffn of the shared expert", m.shared_ffn, 0, kMaxDimension},
      {"first mixture-of-experts layer", m.first_layer, 0, spec.layers - 1},
      {"interval of mixture-of-experts layers", m.layer_interval, 1, spec.layers},
  };
  for (const Range& row : rows)
    if (row.value < row.smallest || row.value > row.largest)
      throw UserError("{}: {}: expected {} to {}, got {}", model_label(spec), row.name, row.smallest,
                      row.largest, row.value);
  if (spec.family == Family::deepseek_v3 && (m.shared_ffn % m.ffn != 0 || m.shared_ffn == 0))
    throw UserError(
        "{}: ffn of the shared expert: expected a positive multiple of {} (the ffn of each expert), got "
        "{}",
        model_label(spec), m.ffn, m.shared_ffn);
  if (spec.family == Family::deepseek_v3 && m.layer_interval != 1)
    throw UserError("{}: interval of mixture-of-experts layers: expected 1 in {}, got {}", model_label(spec),
                    text(spec.family), m.layer_interval);
  if (m.first_layer / m.layer_interval == spec.layers / m.layer_interval)
    throw UserError(
        "{}: none of the {} layers has experts; mixture-of-experts layers are every {} layers, from layer "
        "{}",
        model_label(spec), spec.layers, m.layer_interval, m.first_layer);
  if (m.groups < 1 || m.experts % m.groups != 0 || m.groups_per_token < 1 || m.groups_per_token > m.groups)
    throw UserError(
        "{}: the number of expert groups must divide the {} experts, and the groups per token must be from 1 "
        "to "
        "that number; got {} groups and {} per token",
        model_label(spec), m.experts, m.groups, m.groups_per_token);
  if (!(m.scale > 0 && m.scale <= 1e6))
    throw UserError("{}: scale of the expert weights: expected a positive number of at most 1e6, got {}",
                    model_label(spec), m.scale);
  if (!(m.balance_loss >= 0 && m.balance_loss <= 1e6))
    throw UserError("{}: weight of the load-balancing loss: expected 0 to 1e6, got {}", model_label(spec),
                    m.balance_loss);
}

void check_numbers(const ModelSpec& spec) {
  const auto refuse = [&](const char* name, double value, const char* expected) {
    throw UserError("{}: {}: expected {}, got {}", model_label(spec), name, expected, value);
  };
  if (!(spec.norm_eps > 0 && spec.norm_eps < 1))
    refuse("norm-eps", spec.norm_eps, "a value above 0 and below 1");
  if (!(spec.init_range > 0 && spec.init_range <= 1))
    refuse("init-range", spec.init_range, "a value above 0 and at most 1");
  const auto is_fraction = [](double value) { return value >= 0 && value < 1; };
  if (!is_fraction(spec.embedding_dropout))
    refuse("embedding dropout", spec.embedding_dropout, "a value of at least 0 and below 1");
  if (!is_fraction(spec.hidden_dropout))
    refuse("hidden dropout", spec.hidden_dropout, "a value of at least 0 and below 1");
  if (!is_fraction(spec.attention_dropout))
    refuse("attention dropout", spec.attention_dropout, "a value of at least 0 and below 1");
}

// Checks the number of parameters in floating point, before dimensions are multiplied as integers.
void check_size(const ModelSpec& spec) {
  const auto d = [](std::int64_t value) { return static_cast<double>(value); };
  const double tables = d(spec.vocab) * (spec.is_tied ? 1 : 2) + d(spec.max_positions) + d(spec.token_types);
  const double widths = 2 * d(spec.head_dim) * (d(spec.heads) + d(spec.kv_heads)) + 3 * d(spec.ffn) +
                        d(spec.mixture.experts) * (3 * d(spec.mixture.ffn) + 1) +
                        3 * d(spec.mixture.shared_ffn) + d(spec.latent.query_rank) + d(spec.latent.kv_rank) +
                        d(spec.heads) * d(spec.latent.value_dim);
  const double total = d(spec.hidden) * (tables + d(spec.layers) * widths);
  if (total > kMaxParameters)
    throw UserError("{}: {:.1e} parameters exceed the supported maximum of {:.0e}", model_label(spec), total,
                    kMaxParameters);
}

void check_heads(const ModelSpec& spec) {
  const FamilyTraits& family_traits = traits(spec.family);
  if (spec.heads % spec.kv_heads != 0)
    throw UserError("{}: kv-heads: expected a divisor of heads {}, got {}", model_label(spec), spec.heads,
                    spec.kv_heads);
  if (!family_traits.has_grouped_heads && spec.kv_heads != spec.heads)
    throw UserError("{}: kv-heads: expected {} (heads), got {}; {} does not support grouped-query attention",
                    model_label(spec), spec.heads, spec.kv_heads, family_traits.model_type);
  // Llama's config class requires divisibility even if head_dim is specified.
  const bool must_divide = !family_traits.has_independent_head_dim || spec.family == Family::llama;
  if (must_divide && spec.hidden % spec.heads != 0)
    throw UserError("{}: heads: expected a divisor of hidden {}, got {}", model_label(spec), spec.hidden,
                    spec.heads);
  if (!family_traits.has_independent_head_dim && spec.head_dim != spec.hidden / spec.heads)
    throw UserError("{}: head-dim: expected {} (hidden / heads) in {}, got {}", model_label(spec),
                    spec.hidden / spec.heads, family_traits.model_type, spec.head_dim);
  if (spec.positions == PositionKind::rope && spec.head_dim % 2 != 0)
    throw UserError("{}: head-dim: expected an even number for rotary positions, got {}", model_label(spec),
                    spec.head_dim);
}

void check_latent(const ModelSpec& spec) {
  const LatentAttention& l = spec.latent;
  if (traits(spec.family).is_latent != spec.is_latent())
    throw UserError("{}: key/value rank: expected {} in {}, got {}", model_label(spec),
                    spec.is_latent() ? "0" : "at least 1", text(spec.family), l.kv_rank);
  if (!spec.is_latent()) return;
  const std::int64_t large = kMaxDimension;
  const bool is_valid = l.query_rank >= 1 && l.query_rank <= large && l.kv_rank <= large && l.rope_dim >= 2 &&
                        l.rope_dim % 2 == 0 && l.rope_dim < spec.head_dim && l.value_dim >= 1 &&
                        l.value_dim <= large;
  if (!is_valid)
    throw UserError(
        "{}: latent attention: expected ranks and widths of at least 1 and an even rotary width below "
        "head-dim {}, got ranks {} and {}, rotary width {}, value width {}",
        model_label(spec), spec.head_dim, l.query_rank, l.kv_rank, l.rope_dim, l.value_dim);
}

void check_rope(const ModelSpec& spec) {
  const RopeScaling& scaling = spec.rope_scaling;
  const auto is_positive = [](double value) { return std::isfinite(value) && value > 0; };
  if (spec.positions == PositionKind::learned) {
    if (scaling.kind != RopeScalingKind::none)
      throw UserError("{}: rotary scaling requires rotary positions, but {} has learned positions",
                      model_label(spec), text(spec.family));
    return;
  }
  if (!is_positive(spec.rope_theta))
    throw UserError("{}: rope-theta: expected more than 0, got {}", model_label(spec), spec.rope_theta);
  if (!is_positive(scaling.factor))
    throw UserError("{}: rotary scaling factor: expected more than 0, got {}", model_label(spec),
                    scaling.factor);
  if (scaling.kind != RopeScalingKind::llama3) return;
  if (!is_positive(scaling.low_freq_factor) || !is_positive(scaling.high_freq_factor) ||
      scaling.low_freq_factor >= scaling.high_freq_factor)
    throw UserError(
        "{}: rotary scaling llama3: expected 0 < low_freq_factor < high_freq_factor, got {} and {}",
        model_label(spec), scaling.low_freq_factor, scaling.high_freq_factor);
  if (scaling.original_max_positions < 1 || scaling.original_max_positions > kMaxDimension)
    throw UserError(
        "{}: rotary scaling llama3: original_max_position_embeddings: expected at least 1, got {}",
        model_label(spec), scaling.original_max_positions);
}

void check_biases(const ModelSpec& spec) {
  const auto require = [&](bool is_valid, const char* rule) {
    if (!is_valid)
      throw UserError("{}: {} {}, got qkv {}, out {}, mlp {}", model_label(spec), text(spec.family), rule,
                      spec.has_qkv_bias, spec.has_out_bias, spec.has_mlp_bias);
  };
  const bool has_all = spec.has_qkv_bias && spec.has_out_bias && spec.has_mlp_bias;
  const bool has_some = spec.has_qkv_bias || spec.has_out_bias || spec.has_mlp_bias;
  switch (spec.family) {
    case Family::gpt2:
    case Family::bert:
    case Family::megatron_bert:
      return require(has_all, "requires biases in all projections");
    case Family::mistral:
    case Family::mixtral:
    case Family::deepseek_v3:
      return require(!has_some, "does not support biases");
    case Family::qwen2:
      return require(spec.has_qkv_bias && !spec.has_out_bias && !spec.has_mlp_bias,
                     "requires biases in q, k and v only");
    case Family::qwen3:
    case Family::qwen3_moe:
      return require(spec.has_qkv_bias == spec.has_out_bias && !spec.has_mlp_bias,
                     "requires all attention biases or none, and no mlp biases");
    case Family::llama:
      return require(spec.has_qkv_bias == spec.has_out_bias, "requires all attention biases or none");
  }
}

void check_family(const ModelSpec& spec) {
  const FamilyTraits& family_traits = traits(spec.family);
  const bool matches_family =
      spec.norm == family_traits.norm && spec.norm_position == family_traits.norm_position &&
      spec.positions == family_traits.positions && spec.is_gated == family_traits.is_gated &&
      spec.has_qk_norm == family_traits.has_qk_norm && spec.is_causal == family_traits.is_causal;
  if (!matches_family)
    throw UserError("{}: norms, positions, gating and causality must match the family {}", model_label(spec),
                    family_traits.model_type);
  check_biases(spec);
  if (spec.is_bert() && !spec.is_tied)
    throw UserError("{}: {} uses the word embedding as the output projection, so it cannot be untied",
                    model_label(spec), family_traits.model_type);
  if (spec.is_bert() != (spec.token_types > 0))
    throw UserError("{}: token-types: expected {}, got {}", model_label(spec),
                    spec.is_bert() ? "at least 1" : "0", spec.token_types);
}

double num_custom_elements(const ModelSpec& spec, const CustomTensor& tensor) {
  double elements = 1;
  for (int d = 0; d < tensor.shape.num_dims; ++d) {
    const std::int64_t size = tensor.shape[d];
    if (size < 1 || size > kMaxDimension)
      throw UserError("{}: dimension {} of {}: expected 1 to {}, got {}", model_label(spec), d,
                      in_quotes(tensor.name), kMaxDimension, size);
    elements *= static_cast<double>(size);
  }
  return elements;
}

void check_custom(const ModelSpec& spec) {
  if (spec.layers != 0 || spec.is_tied)
    throw UserError("{}: layers and tied embeddings cannot be set for a model with custom blocks",
                    model_label(spec));
  if (std::ssize(spec.custom) > kMaxLayers)
    throw UserError("{}: expected at most {} blocks, got {}", model_label(spec), kMaxLayers,
                    spec.custom.size());
  std::set<std::string> names;
  double parameters = 0;
  for (std::size_t b = 0; b < spec.custom.size(); ++b) {
    const CustomBlock& block = spec.custom[b];
    const bool is_last = b + 1 == spec.custom.size();
    if (block.name.empty() || !names.insert(block.name).second)
      throw UserError("{}: block {}: expected a unique name, got {}", model_label(spec), b,
                      in_quotes(block.name));
    if (block.inputs < 1 || block.inputs > kMaxDimension)
      throw UserError("{}: block {}: inputs per sample: expected 1 to {}, got {}", model_label(spec),
                      in_quotes(block.name), kMaxDimension, block.inputs);
    if (b > 0 && block.inputs != spec.custom[b - 1].outputs)
      throw UserError(
          "{}: block {}: inputs per sample: expected {} (the outputs of the preceding block), got {}",
          model_label(spec), in_quotes(block.name), spec.custom[b - 1].outputs, block.inputs);
    if (is_last ? block.outputs != 0 : block.outputs < 1)
      throw UserError("{}: block {}: outputs per sample: expected {}, got {}", model_label(spec),
                      in_quotes(block.name),
                      is_last ? "0, because the last block computes the loss" : "at least 1", block.outputs);
    for (const CustomTensor& tensor : block.tensors) {
      if (tensor.name.empty() || !names.insert(tensor.name).second)
        throw UserError("{}: block {}: expected a unique parameter name, got {}", model_label(spec),
                        in_quotes(block.name), in_quotes(tensor.name));
      parameters += num_custom_elements(spec, tensor);
    }
  }
  if (parameters > kMaxParameters)
    throw UserError("{}: {:.1e} parameters exceed the supported maximum of {:.0e}", model_label(spec),
                    parameters, kMaxParameters);
}

}  // namespace

void validate(const ModelSpec& spec) {
  if (spec.is_custom()) return check_custom(spec);
  check_ranges(spec);
  check_numbers(spec);
  check_mixture(spec);
  check_size(spec);
  check_family(spec);
  check_heads(spec);
  check_latent(spec);
  check_rope(spec);
}

ModelSpec with_overrides(ModelSpec spec, const ModelOverrides& overrides) {
  const bool had_equal_heads = spec.kv_heads == spec.heads;
  const auto apply = [](auto& field, const auto& override) {
    if (override) field = *override;
  };
  apply(spec.layers, overrides.layers);
  apply(spec.hidden, overrides.hidden);
  apply(spec.heads, overrides.heads);
  apply(spec.vocab, overrides.vocab);
  apply(spec.max_positions, overrides.max_positions);
  apply(spec.is_tied, overrides.is_tied);
  if (had_equal_heads) spec.kv_heads = spec.heads;
  apply(spec.kv_heads, overrides.kv_heads);
  check_ranges(spec);
  if ((overrides.hidden || overrides.heads) && !overrides.head_dim) {
    if (spec.hidden % spec.heads != 0)
      throw UserError("{}: heads: expected a divisor of hidden {}, got {}; set head-dim for other values",
                      model_label(spec), spec.hidden, spec.heads);
    spec.head_dim = spec.hidden / spec.heads;
  }
  apply(spec.head_dim, overrides.head_dim);
  if (overrides.hidden && !spec.is_gated) spec.ffn = 4 * spec.hidden;
  apply(spec.ffn, overrides.ffn);
  validate(spec);
  return spec;
}

ModelSpec blank_spec(Family family) {
  const FamilyTraits& family_traits = traits(family);
  ModelSpec spec;
  spec.family = family;
  spec.norm = family_traits.norm;
  spec.norm_position = family_traits.norm_position;
  spec.positions = family_traits.positions;
  spec.is_gated = family_traits.is_gated;
  spec.has_qk_norm = family_traits.has_qk_norm;
  spec.is_causal = family_traits.is_causal;
  const bool has_all_biases = !family_traits.is_gated;
  spec.has_qkv_bias = has_all_biases || family == Family::qwen2;
  spec.has_out_bias = spec.has_mlp_bias = has_all_biases;
  spec.is_tied = !family_traits.is_gated;
  return spec;
}

std::string text(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::silu:
      return "silu";
    case Activation::relu:
      return "relu";
  }
  return "";
}

}  // namespace optimus
