// The plans of a training's phases (plan/phase.h): made once by the process that begins the run, kept in RUN/phases/BATCHxLENGTH.json, read by all
// ranks, and come to as changes of plan behind their steps.
#pragma once

#include <string>
#include <vector>

#include "reshard/switch_script.h"
#include "settings/settings.h"

namespace optimus {

// One a phase behind the first, where there are any: the planner's for that phase's batch and length. A plan that was given (--plan) keeps its
// devices and layers, and so does one that the planner has no better for. A run that goes on with its own plan has those that it was begun
// with. Throws UserError when a phase has none.
std::vector<Plan> plan_phases(const TrainOptions& options, const TrainSettings& settings,
                              const DeviceFacts& device);
void keep_phase_plans(FileSystem& files, const Path& run, const TrainSettings& settings);
// Throws UserError.
std::vector<Plan> read_phase_plans(const Path& run, const TrainSettings& settings);

// What --switch-at says, and the phases, by step; those without a step come last. A plan that --switch-at names for a phase's step is that
// phase's. Throws UsageError and UserError.
std::vector<ScriptedSwitch> script_of(const TrainOptions& options, const TrainSettings& settings);
// With the phases' steps as they were decided until now.
std::vector<ScriptedSwitch> with_begins(std::vector<ScriptedSwitch> script, const TrainSettings& settings,
                                        const std::vector<std::int64_t>& begins);

}  // namespace optimus
