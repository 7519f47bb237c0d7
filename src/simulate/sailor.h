// Plans that others ran on mixed graphics cards and measured, in the files that Sailor's authors publish: layers of each stage,
// the cards and tensor parts of each replica, batch, seconds of a step, bytes of the fullest process (in whole MiB, as the
// driver's tool says it). Not part of any fit.
#pragma once

#include <string>
#include <string_view>

#include "simulate/runs.h"

namespace optimus {

// What was measured, and what is needed to predict it. `run` holds plan, model, cluster and software.
struct MeasuredPlanFile {
  std::string name;
  double seconds = 0, bytes = 0;
  bool is_mixed = false;  // cards of several types
  std::unique_ptr<RunCase> run;
};

// Throws UserError: no such form, a card or model that is not known, a plan that is not valid.
MeasuredPlanFile parse_measured_plan(std::string_view text, const std::string& source);

}  // namespace optimus
