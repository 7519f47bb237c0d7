// Which keys of a config.json mean what to us: one visible table, in the source file. Used by hf_config.cpp
// alone.
#pragma once

#include "base/json.h"
#include "model/spec.h"

namespace optimus {

// Throws UserError at the first key that is neither honoured for this family, nor of the one value that
// changes nothing, nor bookkeeping. A key whose value is null asks for nothing and passes.
void refuse_unhonoured_keys(const JsonView& config, Family family);

}  // namespace optimus
