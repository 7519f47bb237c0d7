// Implements choose_plan.h: turns the options into a `Demand`, runs the search and applies the fallbacks.
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
#include "settings/save_rule.h"
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
Constraints runnable(const TrainOptions& options) {
  Constraints constraints = options.layout;
  if (asynchronous_schedule(options.layout)) {
    constexpr int kMostStages = 1 << 16;
    constraints.schedule = text(Schedule::one_f_one_b);
    if (!constraints.pp) constraints.pp = Range{2, kMostStages};
    if (!constraints.zero) constraints.zero = Range{0, 1};
  }
  const auto fix = [](std::optional<Range>& range, int value) {
    if (!range) range = Range{value, value};
  };
  fix(constraints.ep, 1);
  if (options.microbatch) fix(constraints.microbatch, static_cast<int>(*options.microbatch));
  if (options.is_recompute_explicit) constraints.recompute = options.recompute;
  check(constraints);
  return constraints;
}

// The input of a planner search on all devices of `cluster`.
Demand demand_of(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
                 const Cluster& cluster, const Constraints& constraints,
                 const Constants& constants = fitted_constants()) {
  Demand demand{.model = model,
                .cluster = cluster,
                .software = optimus_software(),
                .constants = constants,
                .batch = *options.batch,
                .sequence_length = *options.sequence_length,
                .precision = parse_precision(options.precision, "--precision"),
                .constraints = constraints};
  demand.failures = options.failures;
  demand.shares_memory = !device.is_gpu, demand.supports_offload = false;
  if (const SaveRule rule = parse_save_rule(options.save_every, "--save-every"); rule.period.value > 0)
    demand.failures.checkpoint_every = rule.period;
  const std::optional<Bytes> memory = device.memory_per_worker(cluster.num_devices());
  if (memory && (!constraints.max_memory || *memory < *constraints.max_memory))
    demand.constraints.max_memory = memory;
  return demand;
}

// A plan of `size` data-parallel replicas, each with its share of the batch.
Plan replicas_on(int size, const Demand& demand, const TrainOptions& options) {
  UniformPlan all{.dp = size, .batch = demand.batch, .sequence_length = demand.sequence_length};
  all.microbatch =
      static_cast<int>(options.microbatch.value_or(std::max<std::int64_t>(1, demand.batch / size)));
  all.precision = demand.precision;
  if (options.is_recompute_explicit)
    all.strategy.recompute = parse_recompute(options.recompute, "--recompute");
  if (demand.constraints.zero) all.strategy.zero = demand.constraints.zero->min;
  return uniform_plan(demand.model, all);
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

// The machines that the planner assumes: from measurements of this machine, else from the device type's
// usual properties, with corrections from past runs.
struct AssumedMachines {
  Corrected corrections;
  Cluster cluster;
  std::string note;
  const Constants& constants() const { return corrections.constants; }
};

AssumedMachines assumed_machines(const TrainOptions& options, const DeviceFacts& device, int size,
                                 Precision precision) {
  WarningCollector warnings;
  const std::vector<Residual> found = residuals(load_history(options.history, warnings));
  if (found.empty() && size <= device.count)
    if (auto here = measured_machine(device.type, device.is_gpu, size, size, precision, warnings))
      return {{here->cluster.profile(), here->constants, {}},
              here->cluster,
              warnings.words + "; costs as measured on this machine"};
  Corrected machines = corrected(default_machines(device, size), fitted_constants(), found);
  Cluster cluster(machines.profile, fmt::format("cluster {}x{}", device.type, size));
  std::string note = warnings.words;
  if (!machines.used.empty()) note += "; " + text(machines);
  return {std::move(machines), std::move(cluster), std::move(note)};
}

// The planner's best plan. It may leave devices unused, because a small model can be faster on fewer devices.
// If all devices have to be used, `may_copy` is set and the constraints allow it, the result is a replica of
// the model on every device.
ChosenPlan best_plan_on(int size, const TrainOptions& options, const ModelSpec& model,
                        const DeviceFacts& device, bool may_copy) {
  const AssumedMachines known =
      assumed_machines(options, device, size, parse_precision(options.precision, "--precision"));
  const Constraints constraints = runnable(options);
  Demand demand = demand_of(options, model, device, known.cluster, constraints, known.constants());
  // Asynchronous schedules have no redundant copy of the state.
  if (asynchronous_schedule(options.layout)) demand.failures.mtbf = Seconds(0);
  SearchResult found = search(demand, ClusterView(known.cluster), {.refines = false, .is_uniform = true});
  if (const auto schedule = asynchronous_schedule(options.layout)) {
    found.plan.schedule = *schedule;
    validate(found.plan, model, "--schedule " + options.layout.schedule);
  }
  const bool is_free = !constraints.tp && !constraints.pp && !constraints.cp && !constraints.chunks &&
                       constraints.schedule.empty() && (!constraints.dp || constraints.dp->contains(size));
  if (num_devices(found.plan) == size || !is_free || !may_copy)
    return {found.plan, note_of(found) + known.note};
  return {replicas_on(size, demand, options),
          fmt::format(
              "replicas of the model on all {} devices; fewer are predicted to be faster: try --devices {}",
              size, num_devices(found.plan))};
}

// The best plan. For a run that can continue after the loss of a worker, the best plan with redundant
// copies of the state, if there is one.
ChosenPlan survivable_plan_on(int size, const TrainOptions& options, const ModelSpec& model,
                              const DeviceFacts& device, bool may_copy) {
  const ChosenPlan best = best_plan_on(size, options, model, device, may_copy);
  if (options.is_static || num_devices(best.plan) == 1 || num_tolerated_losses(best.plan) > 0 ||
      is_asynchronous(best.plan.schedule))
    return best;
  TrainOptions copies = options;
  copies.failures.mtbf = kShortMtbf;
  try {
    ChosenPlan chosen = best_plan_on(size, copies, model, device, may_copy);
    if (num_tolerated_losses(chosen.plan) == 0 || num_devices(chosen.plan) < num_devices(best.plan))
      return best;
    chosen.note +=
        fmt::format("; {} has no redundant copy: losing a device would lose steps", short_text(best.plan));
    return chosen;
  } catch (const UserError&) {
    return best;
  }
}

}  // namespace

HardwareProfile default_machines(const DeviceFacts& device, int size) {
  HardwareProfile machines = open_cluster(fmt::format("{}x{}", device.type, size)).profile();
  if (const auto each = device.memory_per_worker(size); each && !device.is_gpu)
    machines.types.front().memory = *each;
  return machines;
}

DeviceFacts with_memory_of_plan(DeviceFacts device, Bytes held, int num_sharing) {
  if (!device.is_gpu) device.num_sharing = num_sharing;
  if (device.memory) *device.memory += Bytes(held.value * device.num_sharing.value_or(1));
  return device;
}

ChosenPlan choose_plan(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device) {
  const int size = static_cast<int>(options.devices.value_or(1));
  ChosenPlan chosen = survivable_plan_on(size, options, model, device, true);
  if (num_devices(chosen.plan) < size)
    throw UserError("no plan for {} devices meets the constraints; at most {} of them can be used", size,
                    num_devices(chosen.plan));
  return chosen;
}

namespace {

// The constraints that must be met even if no other constraint of the user can be, such as an asynchronous
// schedule, because it changes the training result.
Constraints mandatory_constraints(const Constraints& asked) {
  Constraints left;
  left.max_memory = asked.max_memory;
  if (asynchronous_schedule(asked)) left.schedule = asked.schedule;
  return left;
}

}  // namespace

Plan plan_for_size(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device, int size) {
  std::optional<UserError> last;
  for (int used = size; used > 0; --used)
    for (const bool keeps_constraints : {true, false}) {
      TrainOptions proposal = options;
      proposal.plan.clear(), proposal.devices = used;
      if (!keeps_constraints)
        proposal.layout = mandatory_constraints(options.layout), proposal.is_recompute_explicit = false;
      try {
        const Plan plan = survivable_plan_on(used, proposal, model, device, true).plan;
        if (num_devices(plan) == used || used == 1) return plan;
      } catch (const UserError& error) {
        last = error;
      }
    }
  throw last.value_or(UserError("no plan found for {} devices", size));
}

std::optional<ChosenPlan> choose_plan_for_all(const TrainOptions& options, const ModelSpec& model,
                                              const DeviceFacts& device) {
  std::optional<UserError> first;
  for (int size = device.count; size > 1; size /= 2) {
    try {
      ChosenPlan chosen =
          survivable_plan_on(size, options, model, device, /*may_copy=*/*options.batch >= size);
      if (num_devices(chosen.plan) > 1) return chosen;
    } catch (const UserError& error) {
      if (!first) first = error;
    }
  }
  if (first && has_layout(options.layout)) throw *first;
  return std::nullopt;
}

Demand demand_of(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
                 const Cluster& cluster) {
  return demand_of(options, model, device, cluster, runnable(options));
}

namespace {

double seconds_of_step(const Plan& plan, const ModelSpec& model, const DeviceFacts& device) {
  validate(plan, model, "the next plan");
  const int size = num_device_numbers(plan);
  const Cluster cluster(default_machines(device, size));
  const DeviceMap map = DeviceMap::identity(size);
  return StepSimulator({plan, model, cluster, map, optimus_software(), format_of(plan.precision)})
      .seconds(fitted_constants());
}

}  // namespace

InterimPlanner::Inputs first_answers(const TrainOptions& options, const ModelSpec& model,
                                     const DeviceFacts& device, int most_devices) {
  return {
      .choose = [=](int size) { return plan_for_size(options, model, device, size); },
      .make_templates =
          [=] {
            const Cluster cluster(default_machines(device, most_devices));
            return PipelineTemplates::build(demand_of(options, model, device, cluster, runnable(options)),
                                            {.max_nodes = most_devices});
          },
      .step_seconds = [=](const Plan& plan) { return seconds_of_step(plan, model, device); },
      .move_seconds =
          [=](const StateLocation& from, const Plan& to) {
            const PlanChange change = change_plan(from.plan, to, model, present_ranks(from));
            return RecoveryCosts{}.move_seconds(static_cast<double>(change.moved.value));
          },
  };
}

}  // namespace optimus
