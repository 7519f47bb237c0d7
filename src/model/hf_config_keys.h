// Classifies the keys of a config.json. The tables are in hf_config_keys.cpp. Used only by hf_config.cpp.
#pragma once

#include "base/json.h"
#include "model/spec.h"

namespace optimus {

// Throws a UserError for the first key that is not supported for this family, unless it is bookkeeping or has
// a value that has no effect. Keys whose value is null are accepted.
void reject_unsupported_keys(const JsonView& config, Family family);

}  // namespace optimus
