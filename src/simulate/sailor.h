// Reads the files with plans that Sailor's authors measured on mixed GPU types. A file contains the layers of
// each stage, the GPUs and tensor-parallel size of each replica, the batch, the seconds per step, and the
// memory of the fullest process (in whole MiB, as nvidia-smi reports it). These measurements are not used for
// any fit.
#pragma once

#include <string>
#include <string_view>

#include "simulate/runs.h"

namespace optimus {

// A measurement, and everything needed to predict it: `run` contains plan, model, cluster and software.
struct MeasuredPlanFile {
  std::string name;
  double seconds = 0, bytes = 0;
  bool is_mixed = false;  // whether the plan uses several GPU types
  std::unique_ptr<RunCase> run;
};

// Throws UserError for an unsupported format, an unknown GPU or model, or an invalid plan.
MeasuredPlanFile parse_measured_plan(std::string_view text, const std::string& source);

}  // namespace optimus
