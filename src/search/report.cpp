// See report.h.
#include "search/report.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "search/failures.h"
#include "simulate/report.h"

namespace optimus {
namespace {

Bytes as_bytes(double bytes) { return Bytes(static_cast<std::int64_t>(bytes)); }

Setup setup_of(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result) {
  return {result.plan,        demand.model,    cluster_view.cluster(),
          cluster_view.map(), demand.software, format_of(result.plan.precision)};
}

std::string relative_change(double seconds, double baseline) {
  return fmt::format("{}{:.1f} %", seconds >= baseline ? "+" : "", 100 * (seconds / baseline - 1));
}

// For example "one of 64 devices fails every 78 h; the other devices have copies of all state, so failures
// cost 0.0 % of the time".
std::string failures_text(const Demand& demand, const Plan& plan) {
  const int devices = num_devices(plan);
  const bool has_copy = survives_device_loss(plan);
  return fmt::format(
      "one of {} devices fails every {}; {}, so failures cost {} of the time\n", devices,
      text(Seconds(demand.failures.mtbf.value / devices)),
      has_copy ? "the other devices have copies of all state" : "no other device has its state",
      percent(failure_slowdown(demand.failures, devices, has_copy) - 1));
}

std::string goal_text(Goal goal) {
  switch (goal) {
    case Goal::throughput:
      return "fastest";
    case Goal::cost:
      return "least expensive";
    case Goal::energy:
      return "lowest energy";
  }
  return "";
}

}  // namespace

RunEstimate estimate_run(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result,
                         double tokens) {
  RunEstimate estimate;
  estimate.tokens = tokens;
  estimate.steps = tokens / (static_cast<double>(demand.batch) * static_cast<double>(demand.sequence_length));
  const double seconds = estimate.steps * result.step.seconds;
  estimate.days = seconds / 86400;
  const int devices = num_devices(result.plan);
  Demand goal_demand = demand;
  const auto all_have = [&](auto&& is_known) {
    const std::vector<DeviceType>& types = demand.cluster.profile().types;
    return std::all_of(types.begin(), types.end(), is_known);
  };
  goal_demand.goal = Goal::cost;
  if (demand.price || all_have([](const DeviceType& type) { return type.price_per_hour.has_value(); }))
    estimate.cost = cost_rate(goal_demand, cluster_view.map(), devices) * seconds;
  goal_demand.goal = Goal::energy;
  if (demand.watts || all_have([](const DeviceType& type) { return type.watts > 0; }))
    estimate.megawatt_hours = cost_rate(goal_demand, cluster_view.map(), devices) * seconds / 3.6e9;
  return estimate;
}

std::string search_text(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result) {
  std::string out =
      full_text(result.plan) + "\n\n" + prediction_text(result.step, setup_of(demand, cluster_view, result));
  const int num_idle = cluster_view.num_devices() - num_devices(result.plan);
  if (num_idle > 0)
    out += fmt::format("{} of {} devices are idle\n", with_commas(num_idle),
                       with_commas(cluster_view.num_devices()));
  out += fmt::format("peak memory per process: {} of {}\n\n", text(as_bytes(result.peak_memory.bytes)),
                     text(as_bytes(result.peak_memory.limit)));
  if (demand.failures.mtbf.value > 0) out += failures_text(demand, result.plan) + "\n";
  if (!result.alternatives.empty()) {
    TextTable table({"alternative", "step", "", "memory", "why worse"});
    for (const Alternative& other : result.alternatives)
      table.row({full_text(other.plan), text(Seconds(other.seconds)),
                 relative_change(other.seconds, result.step.seconds), text(as_bytes(other.peak_memory.bytes)),
                 other.why});
    out += table.text() + "\n";
  }
  if (result.front.size() > 1) {
    TextTable table({"using less memory", "memory", "step", ""});
    constexpr std::size_t kMaxShown = 6;
    for (std::size_t i = 1; i < std::min(result.front.size(), kMaxShown + 1); ++i)
      table.row({result.front[i].plan, text(as_bytes(result.front[i].bytes)),
                 text(Seconds(result.front[i].seconds)),
                 relative_change(result.front[i].seconds, result.step.seconds)});
    out += table.text() + "\n";
  }
  out += fmt::format("{} of {} candidates, {} simulated; ", goal_text(demand.goal),
                     with_commas(result.num_candidates), result.num_simulated);
  const std::string others = demand.constraints == Constraints{}
                                 ? "no other grid plan"
                                 : "no other grid plan that meets the constraints";
  out += result.gap == 0          ? others + " is better"
         : std::isinf(result.gap) ? "no grid plan fits; the distance to the optimum is unknown"
                                  : fmt::format("{} is better by more than {}", others, percent(result.gap));
  constexpr double kMinShownGain = 5e-4;  // percent() shows smaller values as 0.0 %
  if (result.step.seconds < result.grid_seconds * (1 - kMinShownGain) && demand.goal == Goal::throughput)
    out += fmt::format("; this plan is {} faster than the best grid plan",
                       percent(1 - result.step.seconds / result.grid_seconds));
  return out + "\n";
}

std::string estimate_text(const RunEstimate& estimate) {
  std::string out = fmt::format("{} tokens take {} steps, {:.1f} days", short_count(estimate.tokens),
                                with_commas(static_cast<std::int64_t>(estimate.steps)), estimate.days);
  if (estimate.cost) out += fmt::format(", cost {}", short_count(*estimate.cost));
  if (estimate.megawatt_hours) out += fmt::format(", {:.4g} MWh", *estimate.megawatt_hours);
  return out + "\n";
}

OrderedJson estimate_json(const RunEstimate& estimate) {
  OrderedJson json = {{"tokens", estimate.tokens}, {"steps", estimate.steps}, {"days", estimate.days}};
  if (estimate.cost) json["cost"] = *estimate.cost;
  if (estimate.megawatt_hours) json["megawatt_hours"] = *estimate.megawatt_hours;
  return json;
}

OrderedJson search_json(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result) {
  OrderedJson json;
  json["plan"] = to_json(result.plan);
  json["name"] = full_text(result.plan);
  json["predicted"] = prediction_json(result.step, setup_of(demand, cluster_view, result));
  json["predicted"]["process_bytes"] = static_cast<std::int64_t>(result.peak_memory.bytes);
  json["predicted"]["process_bytes_limit"] = static_cast<std::int64_t>(result.peak_memory.limit);
  json["predicted"]["devices"] = num_devices(result.plan);
  if (demand.failures.mtbf.value > 0)
    json["predicted"]["failures_cost"] =
        failure_slowdown(demand.failures, num_devices(result.plan), survives_device_loss(result.plan)) - 1;
  json["predicted"]["devices_idle"] = cluster_view.num_devices() - num_devices(result.plan);
  json["alternatives"] = OrderedJson::array();
  for (const Alternative& other : result.alternatives)
    json["alternatives"].push_back({{"name", full_text(other.plan)},
                                    {"fits", other.peak_memory.fits()},
                                    {"step_seconds", other.seconds},
                                    {"memory_bytes", static_cast<std::int64_t>(other.peak_memory.bytes)},
                                    {"why", other.why}});
  json["front"] = OrderedJson::array();
  for (const ParetoPoint& point : result.front)
    json["front"].push_back({{"name", point.plan},
                             {"step_seconds", point.seconds},
                             {"memory_bytes", static_cast<std::int64_t>(point.bytes)}});
  json["search"] = {{"candidates", result.num_candidates},
                    {"simulated", result.num_simulated},
                    {"gap", result.gap},
                    {"ruled_out", OrderedJson(result.ruled_out)}};
  return json;
}

}  // namespace optimus
