// --failures with a time line of conditions (adapt/time_line.h): what policies get done on machines that become slow and recover.
#pragma once

#include "cli/failures.h"

namespace optimus {

struct TimeLineTask {
  const FailureOptions& options;
  const ModelOptions& model;
  const std::string& cluster;
  const Constants& constants;
};
// `text`: of the file. Throws UserError and UsageError.
int try_time_line(Console& console, const TimeLineTask& task, const std::string& text);

}  // namespace optimus
