// See phases.h.
#include "run/phases.h"

#include <algorithm>

#include "base/error.h"
#include "plan/plan_json.h"
#include "plan/validate.h"
#include "run/choose_plan.h"

namespace optimus {
namespace {

Path phase_path(const Path& run, const Phase& phase) {
  return run / "phases" / fmt::format("{}.json", phase.after);
}

Plan plan_of(const Phase& phase, const TrainOptions& options, const TrainSettings& settings,
             const DeviceFacts& device) {
  const Plan same = with_batch(settings.plan, phase.batch, phase.sequence_length);
  if (num_devices(settings.plan) == 1) return same;
  TrainOptions own = options;
  own.plan.clear();
  own.batch = phase.batch, own.sequence_length = phase.sequence_length;
  try {
    return choose_plan(own, settings.model, device, false).plan;
  } catch (const UserError&) {
    return same;
  }
}

}  // namespace

std::vector<Plan> plan_phases(const TrainOptions& options, const TrainSettings& settings,
                              const DeviceFacts& device) {
  std::vector<Plan> plans;
  if (settings.phases.size() == 1) return plans;
  for (const Phase& phase : settings.phases) {
    const bool is_first =
        phase.batch == settings.plan.batch && phase.sequence_length == settings.plan.sequence_length;
    plans.push_back(is_first ? settings.plan : plan_of(phase, options, settings, device));
  }
  return plans;
}

void keep_phase_plans(FileSystem& files, const Path& run, const TrainSettings& settings) {
  if (settings.phase_plans.empty()) return;
  value_or_throw(files.create_folders(run / "phases"));
  for (std::size_t i = 0; i < settings.phases.size(); ++i)
    value_or_throw(
        write_atomically(files, phase_path(run, settings.phases[i]), plan_text(settings.phase_plans[i])));
}

std::vector<Plan> read_phase_plans(const Path& run, const TrainSettings& settings) {
  std::vector<Plan> plans;
  if (settings.phases.size() == 1) return plans;
  for (const Phase& phase : settings.phases) {
    plans.push_back(read_plan(phase_path(run, phase)));
    validate(plans.back(), settings.model, phase_path(run, phase).string());
  }
  return plans;
}

std::vector<ScriptedSwitch> script_of(const std::string& switch_at, const TrainSettings& settings) {
  std::vector<ScriptedSwitch> script =
      read_switch_script(switch_at, settings.plan, settings.model, settings.phases);
  for (std::size_t i = 1; i < settings.phase_plans.size(); ++i) {
    const std::int64_t step = settings.phases[i].after;
    for (const ScriptedSwitch& one : script)
      if (one.step == step)
        throw UsageError("--switch-at {}: a phase of the training begins there, with a plan of its own",
                         step);
    script.push_back({step, settings.phase_plans[i], true});
  }
  std::sort(script.begin(), script.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return script;
}

}  // namespace optimus
