// Sets options by the keys that the command line and settings files use.
#pragma once

#include <map>
#include <string>

#include "base/options.h"

namespace optimus {

// Sets the options of the table. Throws UserError for an unknown key, suggesting the nearest known key, and
// for a value that cannot be parsed.
void set_options(OptionTable& table, const std::map<std::string, std::string>& values);

}  // namespace optimus
