// --switch-at STEP:PLAN,…: plans that a run goes on with, each from behind a step.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

struct ScriptedSwitch {
  std::int64_t step = 0;  // after which it comes
  Plan plan;
};

// The same with paths that mean the same file everywhere. Throws UsageError when it is no such list.
std::string with_whole_paths(const std::string& script);
// By step. Throws UsageError and UserError: what cannot be gone on with is refused before the run begins.
std::vector<ScriptedSwitch> read_switch_script(const std::string& script, const Plan& first,
                                               const ModelSpec& model);

}  // namespace optimus
