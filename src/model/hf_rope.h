// Rotary positions in a config.json: version 4 of transformers writes rope_theta and rope_scaling, version 5
// rope_parameters. Used by hf_config.cpp alone.
#pragma once

#include "base/json.h"
#include "model/spec.h"

namespace optimus {

struct RopeSettings {
  double theta = 10000;
  RopeScaling scaling;
  bool operator==(const RopeSettings&) const = default;
};

// Reads whichever is there; refuses kinds of scaling that we do not have, and settings that contradict each
// other. usual_theta: where a config says none.
RopeSettings read_hf_rope(const JsonView& config, std::int64_t max_positions, double usual_theta);

// Adds both forms.
void write_hf_rope(OrderedJson& config, const RopeSettings& rope);

}  // namespace optimus
