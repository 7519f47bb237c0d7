// See choose_plan.h.
#include "run/choose_plan.h"

#include "base/error.h"
#include "cluster/open.h"
#include "search/search.h"

namespace optimus {
namespace {

// What was asked for, and what the engine runs: no expert parallelism, no offload.
Constraints runnable(const TrainOptions& options, bool is_recompute_given) {
  Constraints constraints = options.layout;
  const auto fix = [](std::optional<Range>& range, int value) {
    if (!range) range = Range{value, value};
  };
  fix(constraints.ep, 1);
  if (options.microbatch) fix(constraints.microbatch, static_cast<int>(*options.microbatch));
  if (is_recompute_given) constraints.recompute = options.recompute;
  check(constraints);
  return constraints;
}

// What the planner is asked for so many devices.
Demand demand_of(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
                 const Cluster& cluster, const Constraints& constraints) {
  Demand demand{.model = model,
                .cluster = cluster,
                .software = our_software(),
                .constants = fitted_constants(),
                .batch = *options.batch,
                .sequence_length = *options.sequence_length,
                .precision = parse_precision(options.precision, "--precision"),
                .constraints = constraints};
  const std::optional<Bytes> memory = device.memory_of_each(cluster.num_devices());
  if (memory && (!constraints.max_memory || *memory < *constraints.max_memory))
    demand.constraints.max_memory = memory;
  return demand;
}

// Copies of the model, each on its share of the batch.
Plan copies_on(int size, const Demand& demand, const TrainOptions& options, bool is_recompute_given) {
  UniformPlan all{.dp = size, .batch = demand.batch, .sequence_length = demand.sequence_length};
  all.microbatch =
      static_cast<int>(options.microbatch.value_or(std::max<std::int64_t>(1, demand.batch / size)));
  all.precision = demand.precision;
  if (is_recompute_given) all.strategy.recompute = parse_recompute(options.recompute, "--recompute");
  if (demand.constraints.zero) all.strategy.zero = demand.constraints.zero->least;
  return uniform_plan(demand.model, all);
}

// The planner's best. It may leave devices out, because a small model is quicker on fewer; who wants devices used gets copies of
// the model on all of them, if `may_copy` and constraints let them be.
Plan best_on(int size, const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
             bool is_recompute_given, bool may_copy) {
  const Cluster cluster = open_cluster(fmt::format("{}x{}", device.type, size));
  const Constraints constraints = runnable(options, is_recompute_given);
  const Demand demand = demand_of(options, model, device, cluster, constraints);
  Plan plan = search(demand, Ground(cluster), {.refines = false, .is_uniform = true}).plan;
  const bool is_free = !constraints.tp && !constraints.pp && !constraints.cp && !constraints.chunks &&
                       constraints.schedule.empty() && (!constraints.dp || constraints.dp->has(size));
  return num_devices(plan) < size && is_free && may_copy
             ? copies_on(size, demand, options, is_recompute_given)
             : plan;
}

}  // namespace

Plan choose_plan(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
                 bool is_recompute_given) {
  const int size = static_cast<int>(options.devices.value_or(1));
  Plan plan = best_on(size, options, model, device, is_recompute_given, true);
  if (num_devices(plan) < size)
    throw UserError("no plan for {} devices meets the constraints; {} of them can be used", size,
                    num_devices(plan));
  return plan;
}

std::optional<Plan> choose_plan_for_all(const TrainOptions& options, const ModelSpec& model,
                                        const DeviceFacts& device, bool is_recompute_given) {
  std::optional<UserError> first;
  for (int size = device.count; size > 1; size /= 2) {
    try {
      Plan plan =
          best_on(size, options, model, device, is_recompute_given, /*may_copy=*/*options.batch >= size);
      if (num_devices(plan) > 1) return plan;
    } catch (const UserError& error) {
      if (!first) first = error;
    }
  }
  if (first && has_layout(options.layout)) throw *first;
  return std::nullopt;
}

}  // namespace optimus
