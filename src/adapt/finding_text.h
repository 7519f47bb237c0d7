// Findings as people read them, and back: decisions keep them as their evidence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adapt/detect.h"

namespace optimus {

// Of a decision's evidence, which is text(finding), …: cause, place, factor and first step, as far as the words have them. What is no
// finding is left out.
std::vector<Finding> parse_findings(std::string_view evidence);

}  // namespace optimus
