// Parses the option --switch-at STEP:PLAN,…, which lists plans to which a run switches after given steps.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"
#include "plan/phase.h"
#include "plan/plan.h"

namespace optimus {

struct ScriptedSwitch {
  std::int64_t step = 0;  // the switch takes place after this step
  Plan plan;
  // Whether a phase of the training starts with this switch (plan/phase.h). In that case the run must switch
  // at this step, to this plan or to another one, and the step may be kUndecidedStep.
  bool is_phase = false;
};

// Returns the script with the paths of its plan files made absolute. Throws UsageError if the script is
// invalid.
std::string with_absolute_paths(const std::string& script);
// Reads the plans of a script, sorted by step. Throws UsageError or UserError, so that a plan that the run
// cannot switch to is rejected before the run starts. `phases` lists the phases of the training, if it has
// several. Each plan must fit the phase of its step.
std::vector<ScriptedSwitch> read_switch_script(const std::string& script, const Plan& first,
                                               const ModelSpec& model, const std::vector<Phase>& phases = {});

}  // namespace optimus
