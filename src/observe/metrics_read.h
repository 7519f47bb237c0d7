// Parses metrics.jsonl for reports.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "observe/metrics.h"

namespace optimus {

// Reads step, loss (NaN if it is null in the file), tokens, seconds, tokens_per_second, epoch and
// validation_loss from each line. An unterminated last line is ignored. Throws UserError with the line number
// if a line is invalid.
std::vector<StepMetrics> parse_metrics(std::string_view content, const std::string& source);

}  // namespace optimus
