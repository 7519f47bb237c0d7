// What a run's folder says about its past: decisions, and the plans that they speak of. For commands that tell about a run, while it
// runs or later; nothing here changes a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "observe/decisions.h"

namespace optimus {

// Throws UserError where no run lies.
void check_run(const Path& run);

// None where the run has decided nothing. Throws UserError for a file that is not one of ours.
std::vector<Decision> read_decisions(const Path& run);

// A plan that the run had, in short words ("pp2 tp2").
struct RunPlan {
  std::int64_t epoch = 0;
  std::string hash, name;
};
using RunPlans = std::vector<RunPlan>;
// In the order of epochs. Files that cannot be read are left out.
RunPlans read_run_plans(const Path& run);
// Its words; where the run has no such plan, the first four digits of the hash.
std::string name_of(const RunPlans& plans, const std::string& hash);

}  // namespace optimus
