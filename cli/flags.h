// Reads the words of a command line into an OptionTable, and prints the help text of one.
#pragma once

#include <string>
#include <vector>

#include "base/options.h"

namespace optimus {

// Throws UsageError, which names an unknown flag together with the nearest known one.
void read_flags(OptionTable& table, const std::vector<std::string>& all_arguments);

// The name as users write it: RUN, --device.
std::string display_name(const Option& option);
std::string help_text(const std::string& command, const std::string& summary, const OptionTable& table);

}  // namespace optimus
