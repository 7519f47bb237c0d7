// Parses the plan arguments of the library's functions.
#pragma once

#include <string>

#include "plan/plan.h"

namespace optimus {

// `plan` is JSON text or the name of a file. Throws UserError if it is neither, or if the plan is not valid.
Plan parse_plan_argument(const std::string& plan);

}  // namespace optimus
