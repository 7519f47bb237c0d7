// Implements phases.h.
#include "settings/phases.h"

#include <algorithm>

#include "base/error.h"
#include "plan/plan_json.h"
#include "plan/validate.h"
#include "settings/choose_plan.h"

namespace optimus {
namespace {

Path phase_path(const Path& run, const Phase& phase) {
  return run / "phases" / fmt::format("{}x{}.json", phase.batch, phase.sequence_length);
}

bool is_for(const Plan& plan, const Phase& phase) {
  return plan.batch == phase.batch && plan.sequence_length == phase.sequence_length;
}

Plan plan_for_phase(const Plan& plan, const Phase& phase, const ModelSpec& model) {
  Plan result = with_batch(plan, phase.batch, phase.sequence_length);
  validate(result, model,
           fmt::format("the plan for batches of {} x {} tokens", phase.batch, phase.sequence_length));
  return result;
}

// The saved plan of a phase, if the run is resumed with the plan from its folder.
std::optional<Plan> saved_phase_plan(const TrainOptions& options, const TrainSettings& settings,
                                     const Phase& phase) {
  const Path path = phase_path(settings.run, phase);
  std::error_code error;
  const bool is_resumed_plan = !options.resume.empty() && options.plan == settings.run / "plan.json";
  if (!is_resumed_plan || !std::filesystem::exists(path, error)) return std::nullopt;
  Plan plan = read_plan(path);
  validate(plan, settings.model, path.string());
  return is_for(plan, phase) ? std::optional(std::move(plan)) : std::nullopt;
}

Plan planned(const Phase& phase, const TrainOptions& options, const TrainSettings& settings,
             const DeviceFacts& device) {
  const PlannerRequest request = planner_request(options, settings.model, device).for_phase(phase);
  const bool is_alone = request.num_devices == 1 && !settings.is_device_count_automatic;
  if (settings.is_device_count_automatic)
    if (const auto chosen = choose_plan_for_all(request); chosen && *chosen) return (*chosen)->plan;
  if (!is_alone)
    if (const Feasible<ChosenPlan> chosen = choose_plan(request)) return chosen->plan;
  // If no plan meets the constraints for this phase, uses the current layout with the batch of the phase.
  return plan_for_phase(settings.plan, phase, settings.model);
}

// Phase plans with the same devices and layers as the given plan, or as the plan from --switch-at.
std::vector<Plan> plans_from_given(const TrainOptions& options, const TrainSettings& settings) {
  const std::vector<ScriptedSwitch> script =
      read_switch_script(options.switch_at, settings.plan, settings.model, settings.phases);
  std::vector<Plan> plans(settings.phases.size());
  Plan before = settings.plan;
  auto next = script.begin();
  for (std::size_t i = settings.first_phase + 1; i < plans.size(); ++i) {
    for (; next != script.end() && next->step <= settings.phases[i].begin_step; ++next) before = next->plan;
    before = plans[i] = plan_for_phase(before, settings.phases[i], settings.model);
  }
  return plans;
}

}  // namespace

std::vector<Plan> plan_phases(const TrainOptions& options, const TrainSettings& settings,
                              const DeviceFacts& device) {
  std::vector<Plan> plans(settings.phases.size());
  if (!options.plan.empty()) plans = plans_from_given(options, settings);
  for (std::size_t i = settings.first_phase + 1; i < plans.size(); ++i) {
    const Phase& phase = settings.phases[i];
    if (std::optional<Plan> kept = saved_phase_plan(options, settings, phase))
      plans[i] = *std::move(kept);
    else if (options.plan.empty())
      plans[i] = planned(phase, options, settings, device);
  }
  return plans;
}

void write_phase_plans(FileSystem& files, const Path& run, const TrainSettings& settings) {
  if (settings.first_phase + 1 >= settings.phase_plans.size()) return;
  value_or_throw(files.create_folders(run / "phases"));
  for (std::size_t i = settings.first_phase + 1; i < settings.phases.size(); ++i)
    value_or_throw(
        write_atomically(files, phase_path(run, settings.phases[i]), plan_text(settings.phase_plans[i])));
}

std::vector<Plan> read_phase_plans(const Path& run, const TrainSettings& settings) {
  std::vector<Plan> plans(settings.phases.size());
  for (std::size_t i = settings.first_phase + 1; i < plans.size(); ++i) {
    plans[i] = read_plan(phase_path(run, settings.phases[i]));
    validate(plans[i], settings.model, phase_path(run, settings.phases[i]).string());
  }
  return plans;
}

std::vector<ScriptedSwitch> script_of(const TrainOptions& options, const TrainSettings& settings) {
  if (!options.switch_at.empty() && is_noise_ramp(options.batch_ramp))
    throw UsageError(
        "--switch-at cannot be combined with --batch-ramp {}, because the batch size at a future step is not "
        "known in advance; remove one of them",
        options.batch_ramp);
  std::vector<ScriptedSwitch> script =
      read_switch_script(options.switch_at, settings.plan, settings.model, settings.phases);
  std::vector<ScriptedSwitch> phases;
  for (std::size_t i = settings.first_phase + 1; i < settings.phase_plans.size(); ++i) {
    const std::int64_t step = settings.phases[i].begin_step;
    const auto same =
        std::find_if(script.begin(), script.end(), [&](const auto& one) { return one.step == step; });
    if (same == script.end() || step == kUndecidedStep)
      phases.push_back({step, settings.phase_plans[i], true});
    else
      same->is_phase = true;
  }
  script.insert(script.end(), phases.begin(), phases.end());
  std::stable_sort(script.begin(), script.end(),
                   [](const auto& a, const auto& b) { return a.step < b.step; });
  return script;
}

std::vector<ScriptedSwitch> with_decided_starts(std::vector<ScriptedSwitch> script,
                                                const TrainSettings& settings,
                                                const std::vector<std::int64_t>& begins) {
  std::size_t phase = settings.first_phase;  // the phase that ends at begins[phase]
  for (ScriptedSwitch& one : script)
    if (one.is_phase && phase < begins.size()) one.step = begins[phase++];
  return script;
}

}  // namespace optimus
