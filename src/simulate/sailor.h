// Plans that Sailor's authors measured on mixed GPU types, in the files that they publish: layers of each
// stage, GPUs and tensor-parallel size of each replica, batch, seconds per step, and memory of the fullest
// process (in whole MiB, as nvidia-smi reports it). Not used for any fit.
#pragma once

#include <string>
#include <string_view>

#include "simulate/runs.h"

namespace optimus {

// A measurement, and everything needed to predict it: `run` contains plan, model, cluster and software.
struct MeasuredPlanFile {
  std::string name;
  double seconds = 0, bytes = 0;
  bool is_mixed = false;  // several GPU types
  std::unique_ptr<RunCase> run;
};

// Throws UserError for another format, an unknown GPU or model, or an invalid plan.
MeasuredPlanFile parse_measured_plan(std::string_view text, const std::string& source);

}  // namespace optimus
