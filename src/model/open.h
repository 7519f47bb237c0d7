// Opens a model by the name that a user specifies: a preset, a Hugging Face folder, or a config.json.
#pragma once

#include <string>

#include "model/spec.h"

namespace optimus {

// Presets have precedence; "./gpt2" refers to the folder. Throws a UserError: for an unknown name with the
// nearest preset and the list of presets, for a path with the problem found in it.
ModelSpec open_model(const std::string& name_or_path);

}  // namespace optimus
