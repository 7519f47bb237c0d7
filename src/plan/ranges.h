// Lists of numbers as text with ranges, for devices and blocks in plan files and messages.
#pragma once

#include <string>
#include <vector>

namespace optimus {

// "0..7,12" <-> 0 1 2 3 4 5 6 7 12
std::string ranges_text(const std::vector<int>& numbers);
// Parses at most kMaxPlanDevices numbers. Throws a UserError that names `location`.
std::vector<int> parse_ranges(const std::string& text, const std::string& location);

}  // namespace optimus
