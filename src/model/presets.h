// Presets: published model shapes under their common names. A preset contains shape and initialization, but
// no weights. Read next: model/open.h (opens a preset, a folder or a config.json by name).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec.h"

namespace optimus {

// Returns nullopt if there is no such preset. Names are lower case; look-up ignores case.
std::optional<ModelSpec> find_preset(std::string_view name);

// The names of all presets, in the order of the table: by family, then by size.
std::vector<std::string> preset_names();

}  // namespace optimus
