// The plans for the phases of a training (plan/phase.h). The launching process creates them once and writes
// them to RUN/phases/BATCHxLENGTH.json. All ranks read them and switch to each plan when its phase begins.
#pragma once

#include <string>
#include <vector>

#include "reshard/switch_script.h"
#include "settings/settings.h"

namespace optimus {

// Returns one plan for each phase after the first: the planner's best plan for the batch size and sequence
// length of that phase. With --plan, all phases keep the devices and layers of the given plan. If the planner
// finds no plan for a phase, the phase keeps those of the first plan. A run that is resumed with the plan
// from its folder uses the phase plans with which it was started. Throws UserError if a phase has no valid
// plan.
std::vector<Plan> plan_phases(const TrainOptions& options, const TrainSettings& settings,
                              const DeviceFacts& device);
void write_phase_plans(FileSystem& files, const Path& run, const TrainSettings& settings);
// Throws UserError if a file is missing or invalid.
std::vector<Plan> read_phase_plans(const Path& run, const TrainSettings& settings);

// Returns the switches from --switch-at and to the phase plans, sorted by step. Switches without a known step
// come last. If --switch-at specifies a plan for the step at which a phase begins, that plan is used for the
// phase. Throws UsageError or UserError.
std::vector<ScriptedSwitch> script_of(const TrainOptions& options, const TrainSettings& settings);
// Returns the script with the start steps of those phases (`begins`) that have been decided so far.
std::vector<ScriptedSwitch> with_decided_starts(std::vector<ScriptedSwitch> script,
                                                const TrainSettings& settings,
                                                const std::vector<std::int64_t>& begins);

}  // namespace optimus
