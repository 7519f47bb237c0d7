// Parses command-line arguments into an OptionTable, and formats the help text of a table.
#pragma once

#include <string>
#include <vector>

#include "base/options.h"

namespace optimus {

// Throws UsageError. If a flag is unknown, the message suggests the most similar known flag.
void read_flags(OptionTable& table, const std::vector<std::string>& all_arguments);

// Returns the name as users write it, for example RUN or --device.
std::string display_name(const Option& option);
std::string help_text(const std::string& command, const std::string& summary, const OptionTable& table);

}  // namespace optimus
