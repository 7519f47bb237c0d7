// Implements include/optimus/plan.h and simulate.h with the planner and the simulator. Does not need
// libtorch.
#include "optimus/plan.h"

#include "api/boundary.h"
#include "api/option_map.h"
#include "api/plan_argument.h"
#include "cluster/open.h"
#include "cost/constants_json.h"
#include "model/options.h"
#include "model/presets.h"
#include "optimus/simulate.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "plan/validate.h"
#include "search/report.h"
#include "simulate/report.h"

namespace optimus {
namespace {

Constants constants_for(const std::string& cluster) {
  const Constants constants = builtin_constants().constants;
  return is_measured_cluster_name(cluster) ? with_measured_links(constants) : constants;
}

Prediction prediction_of(const StepPrediction& step) {
  return {.step_seconds = step.seconds,
          .tokens_per_second = step.tokens_per_second,
          .mfu = step.mfu,
          .memory_bytes = step.memory.value};
}

PlanResult best_plan(const PlanOptions& options) {
  ModelOptions model_options;
  Constraints constraints;
  Failures failures;
  OptionTable table;
  declare(table, model_options), declare(table, constraints), declare(table, failures);
  set_options(table, options.more);
  if (options.model.empty())
    throw UserError("PlanOptions::model is empty; set it to a preset, a folder or a config.json");
  if (options.cluster.empty())
    throw UserError(
        "PlanOptions::cluster is empty; set it to a cluster such as h100x512 or to a hardware file");
  if (options.batch < 1) throw UserError("PlanOptions::batch: expected at least 1, got {}", options.batch);
  check(constraints);
  model_options.model = options.model;
  const ModelSpec model = resolve(model_options);
  const Cluster cluster = open_cluster(options.cluster);
  Demand demand{model, cluster, optimus_software(), constants_for(options.cluster)};
  demand.batch = options.batch, demand.sequence_length = options.seq.value_or(model.max_positions);
  demand.precision = parse_precision(options.precision, "PlanOptions::precision");
  demand.constraints = constraints, demand.failures = failures;
  const ClusterView view(cluster);
  const SearchResult search_result = search(demand, view);
  PlanResult result{.name = short_text(search_result.plan),
                    .plan = plan_text(search_result.plan),
                    .predicted = prediction_of(search_result.step),
                    .alternatives = {},
                    .json = search_json(demand, view, search_result).dump()};
  for (const Alternative& other : search_result.alternatives)
    result.alternatives.push_back({full_text(other.plan), other.why, other.seconds});
  return result;
}

SimulateResult simulate_plan(const SimulateOptions& options) {
  ModelOptions model_options;
  OptionTable table;
  declare(table, model_options);
  set_options(table, options.more);
  const Plan plan = parse_plan_argument(options.plan);
  model_options.model = options.model.empty() ? plan.model : options.model;
  if (model_options.model.empty())
    throw UserError("the plan does not name a model; set SimulateOptions::model");
  const ModelSpec model = resolve(model_options);
  validate(plan, model, "the plan");
  const Cluster cluster = open_cluster(options.cluster);
  const DeviceMap map = DeviceMap::of_present(cluster);
  if (num_devices(plan) > map.size())
    throw UserError("the plan is for {} devices, but {} has {}", num_devices(plan), cluster.name(),
                    map.size());
  const Setup setup{plan, model, cluster, map, optimus_software(), format_of(plan.precision)};
  const StepPrediction step = StepSimulator(setup).run(constants_for(options.cluster));
  const auto parts = named_parts(step.split);
  return {.predicted = prediction_of(step),
          .time = {parts.begin(), parts.end()},
          .json = prediction_json(step, setup).dump()};
}

}  // namespace

inline namespace v0 {

PlanResult plan(const PlanOptions& options) {
  return at_boundary([&] { return best_plan(options); });
}

SimulateResult simulate(const SimulateOptions& options) {
  return at_boundary([&] { return simulate_plan(options); });
}

}  // namespace v0
}  // namespace optimus
