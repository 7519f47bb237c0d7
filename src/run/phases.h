// The plans of a training's phases (plan/phase.h): made once by the process that begins the run, kept in RUN/phases/STEP.json, read by all ranks, and
// come to as changes of plan behind their steps.
#pragma once

#include <string>
#include <vector>

#include "elastic/switch_script.h"
#include "run/settings.h"

namespace optimus {

// One a phase, where there are several: the planner's for that phase's batch and length; where it has none, the first phase's devices and
// layers.
std::vector<Plan> plan_phases(const TrainOptions& options, const TrainSettings& settings,
                              const DeviceFacts& device);
void keep_phase_plans(FileSystem& files, const Path& run, const TrainSettings& settings);
// Throws UserError.
std::vector<Plan> read_phase_plans(const Path& run, const TrainSettings& settings);

// What --switch-at says, and the phases, by step. Throws UsageError and UserError, also where both come behind one step.
std::vector<ScriptedSwitch> script_of(const std::string& switch_at, const TrainSettings& settings);

}  // namespace optimus
