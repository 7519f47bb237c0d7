// The command line's words into an OptionTable, and the help text out of one.
#pragma once

#include <string>
#include <vector>

#include "base/options.h"

namespace optimus {

// Throws UsageError; an unknown flag is named together with the nearest known one.
void read_flags(OptionTable& table, const std::vector<std::string>& words);

// As people write it: RUN, --device.
std::string shown_name(const Option& option);
std::string help_text(const std::string& command, const std::string& summary, const OptionTable& table);

}  // namespace optimus
