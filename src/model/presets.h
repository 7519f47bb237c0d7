// Named models: published shapes under the names that people use. A preset is shape and initialisation only,
// no weights. Read next: model/open.h (a preset, a folder or a config.json by one name).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec.h"

namespace optimus {

// Nothing when there is no such preset. Names are lower case; upper case is accepted.
std::optional<ModelSpec> find_preset(std::string_view name);

// In the order of the table: by family, then by size.
std::vector<std::string> preset_names();

}  // namespace optimus
