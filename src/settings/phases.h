// The plans of a training's phases (plan/phase.h). The process that starts the run creates them once and
// writes them to RUN/phases/BATCHxLENGTH.json; all ranks read them and switch to each plan when its phase
// begins.
#pragma once

#include <string>
#include <vector>

#include "reshard/switch_script.h"
#include "settings/settings.h"

namespace optimus {

// One plan per phase after the first: the planner's best for that phase's batch and sequence length. With
// --plan, the given plan's devices and layers are kept in all phases; the first plan's are kept if the
// planner finds no plan for a phase. A run that is resumed with its own plan uses the phase plans that it
// was started with. Throws UserError if a phase has no valid plan.
std::vector<Plan> plan_phases(const TrainOptions& options, const TrainSettings& settings,
                              const DeviceFacts& device);
void write_phase_plans(FileSystem& files, const Path& run, const TrainSettings& settings);
// Throws UserError.
std::vector<Plan> read_phase_plans(const Path& run, const TrainSettings& settings);

// The switches of --switch-at and of the phases, ordered by step; those without a known step come last. A
// plan that --switch-at names for a phase's step replaces that phase's plan. Throws UsageError and UserError.
std::vector<ScriptedSwitch> script_of(const TrainOptions& options, const TrainSettings& settings);
// Returns the script with the start steps of phases (`begins`) that have been decided so far filled in.
std::vector<ScriptedSwitch> with_decided_starts(std::vector<ScriptedSwitch> script,
                                                const TrainSettings& settings,
                                                const std::vector<std::int64_t>& begins);

}  // namespace optimus
