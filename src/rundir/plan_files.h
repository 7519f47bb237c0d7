// The plans of a run in its folder: plan.json is the one in use, plans/N.json that of epoch N, where N is
// the number of plan changes so far.
#pragma once

#include <cstdint>
#include <optional>

#include "base/file.h"
#include "plan/plan.h"

namespace optimus {

// Writes both files. Throws RuntimeFailure if they cannot be written.
void save_plan(FileSystem& files, const Path& run, const Plan& plan, std::int64_t epoch);
// nullopt if the run has no plan yet.
std::optional<std::int64_t> newest_epoch(const Path& run);
Path plan_path(const Path& run, std::int64_t epoch);

}  // namespace optimus
