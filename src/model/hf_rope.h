// Rotary position settings in a config.json. Version 4 of transformers writes rope_theta and rope_scaling,
// and version 5 writes rope_parameters. Used only by hf_config.cpp.
#pragma once

#include "base/json.h"
#include "model/spec.h"

namespace optimus {

struct RopeSettings {
  double theta = 10000;
  RopeScaling scaling;
  bool operator==(const RopeSettings&) const = default;
};

// Reads whichever form is present. `default_theta` is used if the config specifies no theta. Throws a
// UserError for unsupported scaling methods and for contradictory settings.
RopeSettings read_hf_rope(const JsonView& config, std::int64_t max_positions, double default_theta);

// Writes the settings in both forms.
void write_hf_rope(OrderedJson& config, const RopeSettings& rope);

}  // namespace optimus
