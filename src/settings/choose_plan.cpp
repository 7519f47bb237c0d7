// Implements choose_plan.h: converts the request to a `Demand`, runs the search and applies the fallbacks.
#include "settings/choose_plan.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "cluster/open.h"
#include "cost/correction.h"
#include "plan/describe.h"
#include "plan/layouts.h"
#include "plan/validate.h"
#include "recovery/recovery_costs.h"
#include "reshard/plan_change.h"
#include "rundir/run_history.h"
#include "search/search.h"
#include "settings/expected.h"
#include "simulate/simulate.h"

namespace optimus {
namespace {

// Asynchronous schedules, which change the training result, are never chosen automatically. If the user
// requests one, the search runs with the stages of 1F1B and the schedule is replaced afterwards.
std::optional<Schedule> asynchronous_schedule(const Constraints& layout) {
  if (layout.schedule.empty()) return std::nullopt;
  const Schedule asked = parse_schedule(layout.schedule, "--schedule");
  return is_asynchronous(asked) ? std::optional(asked) : std::nullopt;
}

// The user's constraints, limited to what the engine supports: no expert parallelism, no offload.
Constraints runnable(const PlannerRequest& request) {
  Constraints constraints = request.layout;
  if (asynchronous_schedule(request.layout)) {
    constexpr int kMostStages = 1 << 16;
    constraints.schedule = text(Schedule::one_f_one_b);
    if (!constraints.pp) constraints.pp = Range{2, kMostStages};
    if (!constraints.zero) constraints.zero = Range{0, 1};
  }
  const auto fix = [](std::optional<Range>& range, int value) {
    if (!range) range = Range{value, value};
  };
  fix(constraints.ep, 1);
  if (request.microbatch) fix(constraints.microbatch, static_cast<int>(*request.microbatch));
  if (request.recompute) constraints.recompute = *request.recompute;
  check(constraints);
  return constraints;
}

// The input of a planner search on all devices of `cluster`.
Demand demand_of(const PlannerRequest& request, const Cluster& cluster, const Constraints& constraints,
                 const Constants& constants = fitted_constants()) {
  ensure(request.batch > 0 && request.sequence_length > 0,
         "invalid planner request: batch {}, sequence length {}", request.batch, request.sequence_length);
  Demand demand{.model = request.model,
                .cluster = cluster,
                .software = optimus_software(),
                .constants = constants,
                .batch = request.batch,
                .sequence_length = request.sequence_length,
                .precision = request.precision,
                .constraints = constraints};
  demand.failures = request.failures;
  demand.shares_memory = !request.device.is_gpu, demand.supports_offload = false;
  const std::optional<Bytes> memory = request.device.memory_per_worker(cluster.num_devices());
  if (memory && (!constraints.max_memory || *memory < *constraints.max_memory))
    demand.constraints.max_memory = memory;
  return demand;
}

// A plan with one data-parallel replica on each of the requested devices.
Plan replicas(const PlannerRequest& request, const Constraints& constraints) {
  const int size = request.num_devices;
  UniformPlan all{.dp = size, .batch = request.batch, .sequence_length = request.sequence_length};
  all.microbatch =
      static_cast<int>(request.microbatch.value_or(std::max<std::int64_t>(1, request.batch / size)));
  all.precision = request.precision;
  if (request.recompute) all.strategy.recompute = parse_recompute(*request.recompute, "--recompute");
  if (constraints.zero) all.strategy.zero = constraints.zero->min;
  return uniform_plan(request.model, all);
}

std::string note_of(const SearchResult& found) {
  std::string note = fmt::format("plan: {} (best of {} candidates", short_text(found.plan),
                                 with_commas(found.num_candidates));
  if (found.alternatives.empty()) return note + ")";
  const Alternative& next = found.alternatives.front();
  constexpr double kEqualTime = 5e-4;
  const double slower = next.seconds / found.step.seconds - 1;
  if (!next.peak_memory.fits()) return fmt::format("{}; {}: {})", note, short_text(next.plan), next.why);
  if (std::abs(slower) < kEqualTime)
    return fmt::format("{}; {} is equally fast)", note, short_text(next.plan));
  return fmt::format("{}; {} is {:.1f} % {}: {})", note, short_text(next.plan), 100 * std::abs(slower),
                     slower > 0 ? "slower" : "faster", next.why);
}

// Collects warnings about the run history, which become part of the plan's note.
class WarningCollector final : public EventSink {
 public:
  void report(const Event& event) override {
    if (const Warning* warning = std::get_if<Warning>(&event)) words = "; " + warning->text;
  }
  std::string words;
};

// The machines that the planner assumes. They are based on measurements of this machine if there are any.
// Otherwise they have the typical properties of the device type, corrected by past runs.
struct AssumedMachines {
  CorrectedInputs corrections;
  Cluster cluster;
  std::string note;
  const Constants& constants() const { return corrections.constants; }
};

AssumedMachines assumed_machines(const PlannerRequest& request) {
  const DeviceFacts& device = request.device;
  const int size = request.num_devices;
  WarningCollector warnings;
  const std::vector<Residual> found = residuals(load_history(request.history, warnings));
  if (found.empty() && size <= device.count)
    if (auto here = measured_machine(device.type, device.is_gpu, size, size, request.precision, warnings))
      return {{here->cluster.profile(), here->constants, {}},
              here->cluster,
              warnings.words + "; costs measured on this machine"};
  CorrectedInputs machines = correct_inputs(default_machines(device, size), fitted_constants(), found);
  Cluster cluster(machines.profile, fmt::format("cluster {}x{}", device.type, size));
  std::string note = warnings.words;
  if (!machines.applied_residuals.empty()) note += "; " + text(machines);
  return {std::move(machines), std::move(cluster), std::move(note)};
}

// The planner's best plan. It may leave devices unused, because a small model can be faster on fewer devices.
// If `may_copy` is true and the constraints allow it, a plan that would leave devices unused is replaced with
// one that has a replica of the model on every device.
Feasible<ChosenPlan> fastest_plan(const PlannerRequest& request, bool may_copy) {
  const int size = request.num_devices;
  const AssumedMachines known = assumed_machines(request);
  const Constraints constraints = runnable(request);
  Demand demand = demand_of(request, known.cluster, constraints, known.constants());
  // Asynchronous schedules have no redundant copy of the state.
  if (asynchronous_schedule(request.layout)) demand.failures.mtbf = Seconds(0);
  Feasible<SearchResult> found =
      find_plan(demand, ClusterView(known.cluster), {.refines = false, .is_uniform = true});
  if (!found) return tl::unexpected(found.error());
  if (const auto schedule = asynchronous_schedule(request.layout)) {
    found->plan.schedule = *schedule;
    if (const auto problem = find_problem(found->plan, request.model))
      return infeasible("--schedule {}: {}", request.layout.schedule, *problem);
  }
  const bool is_free = !constraints.tp && !constraints.pp && !constraints.cp && !constraints.chunks &&
                       constraints.schedule.empty() && (!constraints.dp || constraints.dp->contains(size));
  if (num_devices(found->plan) == size || !is_free || !may_copy)
    return ChosenPlan{found->plan, note_of(*found) + known.note};
  return ChosenPlan{replicas(request, constraints),
                    fmt::format("one replica of the model on each of {} devices; fewer devices are predicted "
                                "to be faster: try --devices {}",
                                size, num_devices(found->plan))};
}

// The best plan. If the run should be able to continue after the loss of a worker, this is the best plan with
// redundant copies of the state, if there is one.
Feasible<ChosenPlan> survivable_plan(const PlannerRequest& request, bool may_copy) {
  Feasible<ChosenPlan> best = fastest_plan(request, may_copy);
  if (!best || !request.prefers_copies || num_devices(best->plan) == 1 ||
      num_tolerated_losses(best->plan) > 0 || is_asynchronous(best->plan.schedule))
    return best;
  Feasible<ChosenPlan> copied = fastest_plan(request.with_mtbf(kShortMtbf), may_copy);
  if (!copied || num_tolerated_losses(copied->plan) == 0 ||
      num_devices(copied->plan) < num_devices(best->plan))
    return best;
  copied->note +=
      fmt::format("; {} has no redundant copy, so losing a device would lose steps", short_text(best->plan));
  return copied;
}

}  // namespace

HardwareProfile default_machines(const DeviceFacts& device, int size) {
  HardwareProfile machines = open_cluster(fmt::format("{}x{}", device.type, size)).profile();
  if (const auto each = device.memory_per_worker(size); each && !device.is_gpu)
    machines.types.front().memory = *each;
  return machines;
}

DeviceFacts with_memory_of_plan(DeviceFacts device, Bytes held, int workers_per_processor) {
  if (!device.is_gpu) device.workers_per_processor = workers_per_processor;
  if (device.memory) *device.memory += Bytes(held.value * device.workers_per_processor.value_or(1));
  return device;
}

Feasible<ChosenPlan> choose_plan(const PlannerRequest& request) {
  Feasible<ChosenPlan> chosen = survivable_plan(request, /*may_copy=*/true);
  if (chosen && num_devices(chosen->plan) < request.num_devices)
    return infeasible("no plan for {} devices meets the constraints; at most {} devices can be used",
                      request.num_devices, num_devices(chosen->plan));
  return chosen;
}

namespace {

// The user's constraints that are kept if not all of them can be met: the memory limit, and an asynchronous
// schedule, because it changes the training result.
Constraints mandatory_constraints(const Constraints& asked) {
  Constraints left;
  left.max_memory = asked.max_memory;
  if (asynchronous_schedule(asked)) left.schedule = asked.schedule;
  return left;
}

PlannerRequest with_mandatory_constraints(PlannerRequest request) {
  request.layout = mandatory_constraints(request.layout), request.recompute.reset();
  return request;
}

}  // namespace

Feasible<Plan> plan_for_size(const PlannerRequest& request, int size) {
  Infeasible last{fmt::format("no plan found for {} devices", size)};
  for (int used = size; used > 0; --used)
    for (const PlannerRequest& proposal : {request, with_mandatory_constraints(request)}) {
      const Feasible<ChosenPlan> chosen = survivable_plan(proposal.for_devices(used), /*may_copy=*/true);
      if (!chosen)
        last = chosen.error();
      else if (num_devices(chosen->plan) == used || used == 1)
        return chosen->plan;
    }
  return tl::unexpected(last);
}

Feasible<std::optional<ChosenPlan>> choose_plan_for_all(const PlannerRequest& request) {
  std::optional<Infeasible> first;
  for (int size = request.device.count; size > 1; size /= 2) {
    Feasible<ChosenPlan> chosen =
        survivable_plan(request.for_devices(size), /*may_copy=*/request.batch >= size);
    if (!chosen) {
      if (!first) first = chosen.error();
    } else if (num_devices(chosen->plan) > 1) {
      return *std::move(chosen);
    }
  }
  if (first && has_layout(request.layout)) return tl::unexpected(*first);
  return std::optional<ChosenPlan>();
}

Demand demand_of(const PlannerRequest& request, const Cluster& cluster) {
  return demand_of(request, cluster, runnable(request));
}

namespace {

Feasible<double> seconds_of_step(const Plan& plan, const ModelSpec& model, const DeviceFacts& device) {
  if (const auto problem = find_problem(plan, model)) return infeasible("the next plan: {}", *problem);
  const int size = num_device_numbers(plan);
  const Cluster cluster(default_machines(device, size));
  const DeviceMap map = DeviceMap::identity(size);
  return StepSimulator({plan, model, cluster, map, optimus_software(), format_of(plan.precision)})
      .seconds(fitted_constants());
}

}  // namespace

InterimPlanner::Inputs first_answers(const PlannerRequest& request, int most_devices) {
  return {
      .choose = [request](int size) { return plan_for_size(request, size); },
      .make_templates =
          [request, most_devices] {
            const Cluster cluster(default_machines(request.device, most_devices));
            return PipelineTemplates::build(demand_of(request, cluster), {.max_nodes = most_devices});
          },
      .step_seconds =
          [request](const Plan& plan) { return seconds_of_step(plan, request.model, request.device); },
      .move_seconds = [&model = request.model](const StateLocation& from,
                                               const Plan& to) -> Feasible<double> {
        const auto change = find_plan_change(from.plan, to, model, present_ranks(from));
        if (!change) return tl::unexpected(change.error());
        return RecoveryCosts{}.move_seconds(static_cast<double>(change->moved.value));
      },
  };
}

}  // namespace optimus
