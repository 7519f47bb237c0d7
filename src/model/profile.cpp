// Implements profile.h. profile_text.cpp formats profiles.
#include "model/profile.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {
namespace {

constexpr RecomputeMode kModes[] = {RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full};

double fraction(double part, double whole) { return whole > 0 ? part / whole : 0; }

void count_parameters(const ModelSpec& spec, int block, BlockProfile& profile) {
  double split_elements = 0;
  for (const LogicalTensor& tensor : logical_tensors(spec, block)) {
    const std::int64_t elements = tensor.shape.num_elements();
    profile.parameters += elements;
    if (tensor.split.unit != SplitUnit::none && !is_expert(tensor.split.unit))
      split_elements += static_cast<double>(elements);
  }
  profile.split_parameter_fraction = fraction(split_elements, static_cast<double>(profile.parameters));
}

void count_work(const ModelSpec& spec, int block, std::int64_t length, BlockProfile& profile) {
  double split_flops_fraction = 0, split_saved_fraction = 0, saved = 0;
  for (const Operation& operation : operations(spec, block, length)) {
    profile.forward_flops += operation.forward_flops;
    profile.backward_flops += operation.backward_flops;
    profile.attention_recompute_flops += operation.attention_recompute_flops;
    if (operation.split != SplitUnit::none) split_flops_fraction += operation.forward_flops;
    for (const SavedTensor& tensor : operation.saved) {
      const double bytes = tensor.elements_per_token * bytes_per_element(tensor.type, 2);
      saved += bytes;
      if (tensor.split != SplitUnit::none) split_saved_fraction += bytes;
    }
  }
  profile.split_flops_fraction = fraction(split_flops_fraction, profile.forward_flops);
  profile.split_saved_fraction = fraction(split_saved_fraction, saved);
  for (const RecomputeMode mode : kModes) {
    const auto index = static_cast<std::size_t>(mode);
    profile.saved_bytes_bf16[index] = saved_bytes_per_token(spec, block, length, mode, 2);
    profile.saved_bytes_fp32[index] = saved_bytes_per_token(spec, block, length, mode, 4);
  }
}

BlockProfile profile_block(const ModelSpec& spec, int block, std::int64_t length) {
  BlockProfile profile;
  profile.kind = block_kind(spec, block);
  const bool is_layer = profile.kind == BlockKind::layer;
  profile.is_mixture = is_mixture_block(spec, block);
  profile.count = num_blocks_of_pattern(spec, pattern(spec, block));
  profile.max_parts = !is_layer            ? spec.vocab
                      : profile.is_mixture ? spec.heads
                                           : std::min(spec.heads, spec.ffn);
  count_parameters(spec, block, profile);
  count_work(spec, block, length, profile);
  return profile;
}

}  // namespace

ModelProfile profile_model(const ModelSpec& spec, std::int64_t sequence_length) {
  validate(spec);
  if (spec.is_custom())
    throw UserError("{}: expected a transformer; models with custom blocks cannot be profiled", spec.name);
  if (sequence_length < 1) throw UserError("sequence length: expected at least 1, got {}", sequence_length);
  if (spec.positions == PositionKind::learned && sequence_length > spec.max_positions)
    throw UserError("sequence length {} exceeds the {} learned positions of {}", sequence_length,
                    spec.max_positions, spec.name.empty() ? "the model" : spec.name);
  ModelProfile profile;
  profile.spec = spec;
  profile.sequence_length = sequence_length;
  profile.parameters = num_parameters(spec);
  profile.active_parameters = num_active_parameters(spec);
  profile.flops_per_token = model_flops_per_token(spec, sequence_length);
  constexpr int kOrder[] = {static_cast<int>(BlockKind::embedding), static_cast<int>(BlockKind::layer), 3,
                            static_cast<int>(BlockKind::head)};
  for (const int p : kOrder)
    if (const int block = p < num_patterns(spec) ? first_of_pattern(spec, p) : -1; block >= 0)
      profile.blocks.push_back(profile_block(spec, block, sequence_length));
  profile.max_stages = num_blocks(spec);
  profile.boundary_elements_per_token = spec.hidden;
  return profile;
}

std::int64_t default_sequence_length(const ModelSpec& spec) {
  return std::min<std::int64_t>(spec.max_positions, 8192);
}

}  // namespace optimus
