// The flag --software of commands that predict.
#pragma once

#include <string>

#include "cost/software.h"

namespace optimus {

// Ours when the name is empty. Throws UserError with all names for one that is not known.
const Software& software_asked(const std::string& name);

}  // namespace optimus
