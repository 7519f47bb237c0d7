// A model by the name that a user gives: a preset, a Hugging Face folder, or a config.json.
#pragma once

#include <string>

#include "model/spec.h"

namespace optimus {

// A preset of that name comes first; "./gpt2" means the folder. Throws UserError: an unknown name with the
// nearest preset and all of them, a path with what is wrong in it.
ModelSpec open_model(const std::string& name_or_path);

}  // namespace optimus
