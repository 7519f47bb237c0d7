// Reads findings back from the evidence text of recorded decisions (text(const Finding&) in adapt/detect.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adapt/detect.h"

namespace optimus {

// Parses a comma-separated list of text(finding). Each finding has a cause, locations, a factor and a first
// step. Other parts of the text are skipped.
std::vector<Finding> parse_findings(std::string_view evidence);

}  // namespace optimus
