// metrics.jsonl read back: what a report shows of each step.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "observe/metrics.h"

namespace optimus {

// step, loss (not a number where the file has null), tokens, seconds, tokens_per_second, epoch and validation_loss of every line; a last
// line without its end is left out. Throws UserError with the line's number for what is none of ours.
std::vector<StepMetrics> parse_metrics(std::string_view content, const std::string& source);

}  // namespace optimus
