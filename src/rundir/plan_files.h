// The plan files in a run's folder: plan.json is the current plan, and plans/N.json is the plan of epoch N,
// where N is the number of preceding plan changes.
#pragma once

#include <cstdint>
#include <optional>

#include "base/file.h"
#include "plan/plan.h"

namespace optimus {

// Writes plan.json and the plan file of the epoch. Throws RuntimeFailure if they cannot be written.
void save_plan(FileSystem& files, const Path& run, const Plan& plan, std::int64_t epoch);
// Returns nullopt if the run has no plan yet.
std::optional<std::int64_t> newest_epoch(const Path& run);
Path plan_path(const Path& run, std::int64_t epoch);

}  // namespace optimus
