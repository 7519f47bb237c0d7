// Implements simulate --failures with a timeline of conditions (adapt/condition_timeline.h). Reports the
// result of each policy on machines that slow down and recover.
#pragma once

#include "cli/failures.h"

namespace optimus {

struct TimelineTask {
  const FailureOptions& options;
  const ModelOptions& model;
  const std::string& cluster;
  const Constants& constants;
};
// `text` is the content of the file. Throws UserError and UsageError.
int replay_timeline(Console& console, const TimelineTask& task, const std::string& text);

}  // namespace optimus
