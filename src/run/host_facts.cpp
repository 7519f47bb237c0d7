// See host_facts.h.
#include "run/host_facts.h"

#include "elastic/memory_level.h"
#include "plan/layouts.h"
#include "reshard/control.h"
#include "rundir/plan_files.h"
#include "settings/choose_plan.h"

namespace optimus {

namespace {

constexpr int kGrowthFactor = 2;  // plan templates cover up to this many times the current number of devices
constexpr Seconds kRequestTimeout{20};  // for a run to accept a better plan

}  // namespace

EmergencyCheckpointOptions emergency_checkpoint_options(const RunSpec& spec, const Path& folder) {
  return {.run = folder,
          .memory = find_memory_level(spec.settings.run),
          .model = spec.settings.model,
          .retention = {spec.options.keep_last, spec.options.keep_every},
          .small_files = small_files(spec.settings)};
}

MembershipCoordinator::Inputs coordinator_facts(const RunSpec& spec, const Path& folder,
                                                const DeviceFacts& device) {
  const TrainSettings& settings = spec.settings;
  const PlannerRequest request =
      planner_request(spec.options, settings.model, device).with_shape_of(settings.plan);
  // Improved plans are for the phase in which the run started.
  const bool has_phases = settings.phases.size() > 1;
  return {.model = settings.model,
          .run = folder,
          .memory = find_memory_level(settings.run),
          .interim_planner_inputs = first_answers(request, kGrowthFactor * num_devices(settings.plan)),
          .phases = settings.phases,
          .propose_improvement = [folder, has_phases](const Plan& plan) {
            if (has_phases) return;
            (void)send_request(folder, switch_request_json(plan, "improved by the planner"),
                               Deadline::after(kRequestTimeout, "a better plan"));
          }};
}

RunHostOptions host_facts_of(const RunSpec& spec, const Path& folder, const DeviceFacts& device) {
  RunHostOptions facts{.coordinator = coordinator_facts(spec, folder, device),
                       .emergency_checkpoint = emergency_checkpoint_options(spec, folder),
                       .workers = {},
                       .plan = spec.settings.plan,
                       .epoch = newest_epoch(folder).value_or(0)};
  facts.emergency_checkpoint.may_be_partitioned = true;
  facts.coordinator.on_change_done = [folder](const MembershipChange&,
                                              const std::vector<WorkerEntry>& members) {
    RealFileSystem files;
    (void)write_atomically(files, folder / "workers.json", workers_json(members));
  };
  return facts;
}

}  // namespace optimus
