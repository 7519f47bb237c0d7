// Reads the history of a run from its folder: decisions, and the plans that they refer to. For commands that
// report on a run, while it runs or later; nothing here modifies a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "observe/decisions.h"

namespace optimus {

// Throws UserError if the folder contains no run.
void check_run(const Path& run);

// Returns the decisions with the names of their plans. Empty if the run has made no decision. Throws
// UserError for an invalid file.
std::vector<Decision> read_decisions(const Path& run);

// A plan that the run used, with its short name ("pp2 tp2").
struct RunPlan {
  std::int64_t epoch = 0;
  std::string hash, name;
};
using RunPlans = std::vector<RunPlan>;
// In the order of epochs. Files that cannot be read are skipped.
RunPlans read_run_plans(const Path& run);
// The plan's short name; the first four digits of the hash if the run has no such plan.
std::string name_of(const RunPlans& plans, const std::string& hash);

}  // namespace optimus
