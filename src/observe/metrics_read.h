// Reads metrics.jsonl back, for reports.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "observe/metrics.h"

namespace optimus {

// Reads step, loss (NaN if the file has null), tokens, seconds, tokens_per_second, epoch and validation_loss
// of every line; an unterminated last line is ignored. Throws UserError with the line number for an invalid
// line.
std::vector<StepMetrics> parse_metrics(std::string_view content, const std::string& source);

}  // namespace optimus
