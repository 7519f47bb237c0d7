// See host_facts.h.
#include "run/host_facts.h"

#include "elastic/memory_level.h"
#include "plan/layouts.h"
#include "reshard/control.h"
#include "rundir/plan_files.h"
#include "settings/choose_plan.h"

namespace optimus {

namespace {

constexpr int kGrowthFactor = 2;  // plan templates are prepared for up to this many times the present devices
constexpr Seconds kRequestTimeout{20};  // for a run to accept a better plan

}  // namespace

EmergencyCheckpointOptions salvage_facts(const TrainSettings& settings, const TrainOptions& options,
                                         const Path& folder) {
  return {.run = folder,
          .memory = find_memory_level(settings.run),
          .model = settings.model,
          .retention = {options.keep_last, options.keep_every},
          .small_files = small_files(settings)};
}

MembershipCoordinator::Inputs coordinator_facts(const TrainSettings& settings, const TrainOptions& options,
                                                const Path& folder, const DeviceFacts& device) {
  TrainOptions proposal = options;
  proposal.batch = settings.plan.batch, proposal.sequence_length = settings.plan.sequence_length;
  // The given plans belong to the phase in which the run started.
  const bool has_phases = settings.phases.size() > 1;
  proposal.precision = text(settings.plan.precision);
  return {.model = settings.model,
          .run = folder,
          .memory = find_memory_level(settings.run),
          .interim_planner_inputs =
              first_answers(proposal, settings.model, device, kGrowthFactor * num_devices(settings.plan)),
          .phases = settings.phases,
          .propose_improvement = [folder, has_phases](const Plan& plan) {
            if (has_phases) return;
            (void)send_request(folder, plan_request_json(plan, "improved by the planner"),
                               Deadline::after(kRequestTimeout, "a better plan"));
          }};
}

RunHostOptions host_facts_of(const PreparedRun& run, const TrainOptions& options, const Path& folder,
                             const DeviceFacts& device) {
  RunHostOptions facts{.coordinator = coordinator_facts(run.settings, options, folder, device),
                       .emergency_checkpoint = salvage_facts(run.settings, options, folder),
                       .workers = {},
                       .plan = run.settings.plan,
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
