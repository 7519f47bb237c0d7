// See choose_plan.h.
#include "run/choose_plan.h"

#include "base/error.h"
#include "cluster/open.h"
#include "search/search.h"

namespace optimus {
namespace {

// What was asked for, and what the engine runs: one stage, no context or expert parallelism, no offload.
Constraints runnable(const TrainOptions& options, bool is_recompute_given) {
  Constraints constraints = options.layout;
  const auto fix = [](std::optional<Range>& range, int value) {
    if (!range) range = Range{value, value};
  };
  fix(constraints.pp, 1), fix(constraints.cp, 1), fix(constraints.ep, 1), fix(constraints.chunks, 1);
  if (options.microbatch) fix(constraints.microbatch, static_cast<int>(*options.microbatch));
  if (is_recompute_given) constraints.recompute = options.recompute;
  check(constraints);
  return constraints;
}

}  // namespace

Plan choose_plan(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
                 bool is_recompute_given) {
  const int size = static_cast<int>(options.devices);
  const Cluster cluster = open_cluster(fmt::format("{}x{}", device.type, size));
  Constraints constraints = runnable(options, is_recompute_given);
  if (device.memory && (!constraints.max_memory || *device.memory < *constraints.max_memory))
    constraints.max_memory = device.memory;
  const Demand demand{.model = model,
                      .cluster = cluster,
                      .software = our_software(),
                      .constants = fitted_constants(),
                      .batch = *options.batch,
                      .sequence_length = *options.sequence_length,
                      .precision = parse_precision(options.precision, "--precision"),
                      .constraints = constraints};
  const Plan plan = search(demand, Ground(cluster), {.refines = false, .is_uniform = true}).plan;
  if (num_devices(plan) == size) return plan;
  // A small model may be quicker on fewer; who asked for devices wants them used.
  UniformPlan all{
      .dp = size, .microbatch = 1, .batch = *options.batch, .sequence_length = *options.sequence_length};
  all.microbatch =
      static_cast<int>(options.microbatch.value_or(std::max<std::int64_t>(1, *options.batch / size)));
  all.precision = demand.precision;
  if (is_recompute_given) all.strategy.recompute = parse_recompute(options.recompute, "--recompute");
  if (constraints.zero) all.strategy.zero = constraints.zero->least;
  const bool is_free = !constraints.tp && (!constraints.dp || constraints.dp->has(size));
  if (!is_free)
    throw UserError("no plan for {} devices meets the constraints; {} of them can be used", size,
                    num_devices(plan));
  return uniform_plan(model, all);
}

}  // namespace optimus
