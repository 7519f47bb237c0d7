// Findings in the records of decisions. Records of earlier versions contain findings only as evidence text
// (text(const Finding&) in adapt/detect.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adapt/detect.h"
#include "adapt/plan_proposal.h"

namespace optimus {

// The findings that a change of plan can mitigate; only these are the reason for a decision.
std::vector<RecordedFinding> recorded(const std::vector<Finding>& findings);

// For records of version 0.2 and earlier: returns the findings in a comma-separated list of text(finding),
// with cause, location, factor and first step. Other parts of the text are skipped.
std::vector<RecordedFinding> parse_findings(std::string_view evidence);

}  // namespace optimus
