// The option --switch-at STEP:PLAN,…: plans to which a run switches after given steps.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"
#include "plan/phase.h"
#include "plan/plan.h"

namespace optimus {

struct ScriptedSwitch {
  std::int64_t step = 0;  // the switch comes after this step
  Plan plan;
  // A phase of the training starts with this switch (plan/phase.h). The switch is then mandatory, with this
  // plan or another one, and its step may be kUndecidedStep.
  bool is_phase = false;
};

// The script with absolute paths of its plan files. Throws UsageError if the script is invalid.
std::string with_absolute_paths(const std::string& script);
// Reads the plans of a script, sorted by step. Throws UsageError and UserError: a plan that the run cannot
// switch to is refused before the run starts. `phases`: the phases of the training, if it has several; each
// plan must fit the phase of its step.
std::vector<ScriptedSwitch> read_switch_script(const std::string& script, const Plan& first,
                                               const ModelSpec& model, const std::vector<Phase>& phases = {});

}  // namespace optimus
