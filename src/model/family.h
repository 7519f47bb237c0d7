// What each model family fixes: the facts that a config.json or a preset cannot change. One visible table;
// spec.cpp checks specs against it, hf_config.cpp fills specs from it. Not here: names of parameters in
// checkpoints (model/hf_names.h).
#pragma once

#include <span>
#include <string_view>

#include "model/spec.h"

namespace optimus {

struct FamilyTraits {
  Family family;
  std::string_view model_type;    // in config.json; also our own name for the family
  std::string_view architecture;  // the class of transformers whose parameters ours are
  NormKind norm;
  NormPlace norm_place;
  PositionKind positions;
  bool is_gated;
  bool has_grouped_heads;  // kv_heads may be smaller than heads
  bool has_own_head_dim;   // head_dim may differ from hidden / heads
  bool has_qk_norm;
  bool is_causal;
  bool is_mixture = false;  // of experts
  bool is_latent = false;   // its attention
};

std::span<const FamilyTraits> all_families();
const FamilyTraits& traits(Family family);

// A spec with everything filled in that the family fixes; dimensions are still 0.
ModelSpec blank_spec(Family family);

}  // namespace optimus
