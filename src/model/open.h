// Opens the model that a user specifies: a preset name, a Hugging Face folder or a config.json.
#pragma once

#include <string>

#include "model/spec.h"

namespace optimus {

// Preset names have precedence over paths, so a folder with the name of a preset is opened as "./gpt2".
// Throws a UserError. For an unknown name, the message suggests the nearest preset and lists all presets.
ModelSpec open_model(const std::string& name_or_path);

}  // namespace optimus
