// Implements run_records.h.
#include "rundir/run_records.h"

#include "base/error.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "rundir/plan_files.h"

namespace optimus {
namespace {

// The content of the file, or an empty string if the file does not exist.
std::string content_of(const Path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) ? value_or_throw(read_file(path)) : std::string();
}

}  // namespace

void check_run(const Path& run) {
  std::error_code error;
  if (!std::filesystem::is_directory(run, error)) throw UserError("{}: no such folder", run.string());
  if (!std::filesystem::exists(run / "plan.json", error))
    throw UserError("{}: not a run folder (it has no plan.json)", run.string());
}

std::vector<Decision> read_decisions(const Path& run) {
  const Path path = run / "decisions.jsonl";
  std::vector<Decision> decisions = parse_decisions(content_of(path), path.string());
  const RunPlans plans = read_run_plans(run);
  for (Decision& decision : decisions) {  // records of version 0.1 have only hashes
    if (decision.from_name.empty()) decision.from_name = name_of(plans, decision.from);
    if (decision.to_name.empty()) decision.to_name = name_of(plans, decision.to);
  }
  return decisions;
}

RunPlans read_run_plans(const Path& run) {
  RunPlans plans;
  constexpr std::int64_t kMaxEpochs = 100'000;
  const std::int64_t last = std::min(newest_epoch(run).value_or(-1), kMaxEpochs);
  for (std::int64_t epoch = 0; epoch <= last; ++epoch) try {
      const Plan plan = read_plan(plan_path(run, epoch));
      plans.push_back({epoch, plan_hash(plan), short_text(plan)});
    } catch (const ReportedError&) {
    }
  return plans;
}

std::string name_of(const RunPlans& plans, const std::string& hash) {
  for (const RunPlan& run_plan : plans)
    if (run_plan.hash == hash) return run_plan.name;
  return hash.substr(0, 4);
}

}  // namespace optimus
