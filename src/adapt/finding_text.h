// Reads findings back from the evidence text of recorded decisions (text(const Finding&) in adapt/detect.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adapt/detect.h"

namespace optimus {

// Returns the findings in a comma-separated list of text(finding), with cause, location, factor and first
// step. Other parts of the text are skipped.
std::vector<Finding> parse_findings(std::string_view evidence);

}  // namespace optimus
