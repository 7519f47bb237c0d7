// Classifies the keys of a config.json; the tables are in the source file. Used only by hf_config.cpp.
#pragma once

#include "base/json.h"
#include "model/spec.h"

namespace optimus {

// Throws a UserError for the first key that is neither supported for this family, nor has the one value
// without effect, nor is bookkeeping. Keys whose value is null are accepted.
void reject_unsupported_keys(const JsonView& config, Family family);

}  // namespace optimus
