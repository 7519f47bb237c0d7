// Reads the decisions of a run, and the plans that they refer to, from its folder. Used by commands that
// report on a run during or after the training. Does not modify any file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "observe/decisions.h"

namespace optimus {

// Throws UserError if the folder contains no run.
void check_run(const Path& run);

// Returns the decisions, with the names of their plans. Returns an empty vector if there are no decisions.
// Throws UserError if the file is invalid.
std::vector<Decision> read_decisions(const Path& run);

// A plan that the run used, with its short name ("pp2 tp2").
struct RunPlan {
  std::int64_t epoch = 0;
  std::string hash, name;
};
using RunPlans = std::vector<RunPlan>;
// Returns the plans of the run in epoch order. Files that cannot be read are skipped.
RunPlans read_run_plans(const Path& run);
// The short name of the plan, or the first four digits of the hash if the run has no such plan.
std::string name_of(const RunPlans& plans, const std::string& hash);

}  // namespace optimus
