// Plans that others ran on mixed GPU types and measured, in the files that Sailor's authors publish: layers
// of each stage, GPUs and tensor parts of each replica, batch, seconds per step, and memory of the fullest
// process (in whole MiB, as nvidia-smi reports it). Not part of any fit.
#pragma once

#include <string>
#include <string_view>

#include "simulate/runs.h"

namespace optimus {

// The measurement and the data to predict it. `run` has plan, model, cluster and software.
struct MeasuredPlanFile {
  std::string name;
  double seconds = 0, bytes = 0;
  bool is_mixed = false;  // several types of GPUs
  std::unique_ptr<RunCase> run;
};

// Throws UserError for another format, an unknown GPU or model, or an invalid plan.
MeasuredPlanFile parse_measured_plan(std::string_view text, const std::string& source);

}  // namespace optimus
