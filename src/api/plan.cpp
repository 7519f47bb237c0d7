// Implements include/optimus/plan.h and simulate.h with the planner and the simulator. Does not need
// libtorch.
#include "optimus/plan.h"

#include "api/boundary.h"
#include "api/option_map.h"
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

Prediction prediction_of(const OrderedJson& json) {
  const Json plain = Json::parse(json.dump());
  const JsonView view(plain, "the prediction");
  Prediction result;
  result.step_seconds = view.at("step_seconds").number();
  result.tokens_per_second = view.at("tokens_per_second").number();
  if (const auto mfu = view.find("mfu")) result.mfu = mfu->number();
  result.memory_bytes = view.at("memory_bytes").integer();
  return result;
}

// A plan is JSON text or the name of a file.
Plan plan_from(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') return parse_plan(text, "the plan");
  return read_plan(text);
}

PlanResult best_plan(const PlanOptions& options) {
  ModelOptions model_options;
  Constraints constraints;
  Failures failures;
  OptionTable table;
  declare(table, model_options), declare(table, constraints), declare(table, failures);
  set_options(table, options.more);
  if (options.model.empty())
    throw UserError("PlanOptions::model is empty; name a preset, a folder or a config.json");
  if (options.cluster.empty())
    throw UserError("PlanOptions::cluster is empty; name a cluster, as in h100x512, or a file");
  if (options.batch < 1) throw UserError("PlanOptions::batch: expected at least 1, got {}", options.batch);
  check(constraints);
  model_options.model = options.model;
  const ModelSpec model = resolve(model_options);
  const Cluster cluster = open_cluster(options.cluster);
  Demand demand{model, cluster, optimus_software(), constants_for(options.cluster)};
  demand.batch = options.batch, demand.sequence_length = options.seq.value_or(model.max_positions);
  demand.precision = parse_precision(options.precision, "PlanOptions::precision");
  demand.constraints = constraints, demand.failures = failures;
  const ClusterView ground(cluster);
  const SearchResult found = search(demand, ground);
  const OrderedJson json = search_json(demand, ground, found);

  PlanResult result{.name = short_text(found.plan),
                    .plan = plan_text(found.plan),
                    .predicted = prediction_of(json.at("predicted")),
                    .alternatives = {},
                    .json = json.dump()};
  for (const OrderedJson& other : json.at("alternatives"))
    result.alternatives.push_back(
        {other.at("name"), other.value("why", ""), other.value("step_seconds", 0.0)});
  return result;
}

SimulateResult simulated(const SimulateOptions& options) {
  ModelOptions model_options;
  OptionTable table;
  declare(table, model_options);
  set_options(table, options.more);
  const Plan plan = plan_from(options.plan);
  model_options.model = options.model.empty() ? plan.model : options.model;
  if (model_options.model.empty()) throw UserError("the plan names no model; set SimulateOptions::model");
  const ModelSpec model = resolve(model_options);
  validate(plan, model, "the plan");
  const Cluster cluster = open_cluster(options.cluster);
  const DeviceMap map = DeviceMap::of_present(cluster);
  if (num_devices(plan) > map.size())
    throw UserError("the plan is for {} devices, but {} has {}", num_devices(plan), cluster.name(),
                    map.size());
  const Setup setup{plan, model, cluster, map, optimus_software(), format_of(plan.precision)};
  const OrderedJson json = prediction_json(StepSimulator(setup).run(constants_for(options.cluster)), setup);
  SimulateResult result{.predicted = prediction_of(json), .time = {}, .json = json.dump()};
  for (const auto& [name, share] : json.at("time").items())
    if (share.is_number()) result.time[name] = share;
  return result;
}

}  // namespace

inline namespace v0 {

PlanResult plan(const PlanOptions& options) {
  return at_boundary([&] { return best_plan(options); });
}

SimulateResult simulate(const SimulateOptions& options) {
  return at_boundary([&] { return simulated(options); });
}

}  // namespace v0
}  // namespace optimus
