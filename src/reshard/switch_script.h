// --switch-at STEP:PLAN,…: plans that a run goes on with, each from behind a step.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"
#include "plan/phase.h"
#include "plan/plan.h"

namespace optimus {

struct ScriptedSwitch {
  std::int64_t step = 0;  // after which it comes
  Plan plan;
  // A phase of the training begins with it (plan/phase.h): it must come, with this plan or another. Its step may be kNotYet.
  bool is_phase = false;
};

// The same with paths that mean the same file everywhere. Throws UsageError when it is no such list.
std::string with_whole_paths(const std::string& script);
// By step. Throws UsageError and UserError: what cannot be gone on with is refused before the run begins.
// phases: of the training, where it has several; plans are of the phase that they come in.
std::vector<ScriptedSwitch> read_switch_script(const std::string& script, const Plan& first,
                                               const ModelSpec& model, const std::vector<Phase>& phases = {});

}  // namespace optimus
