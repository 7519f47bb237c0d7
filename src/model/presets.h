// Presets: published model shapes under their common names. A preset specifies the shape and the
// initialization but contains no weights. Read next: model/open.h, which opens a preset, a folder or a
// config.json by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec.h"

namespace optimus {

// Returns nullopt if there is no such preset. Names are lower case, but lookup is case-insensitive.
std::optional<ModelSpec> find_preset(std::string_view name);

// The names of all presets in table order, which is by family and then by size.
std::vector<std::string> preset_names();

}  // namespace optimus
