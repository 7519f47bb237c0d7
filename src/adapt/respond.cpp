// Implements respond.h.
#include "adapt/respond.h"

#include <algorithm>
#include <cmath>

#include "adapt/calibration.h"
#include "base/error.h"
#include "model/tensors.h"
#include "plan/validate.h"

namespace optimus {
namespace {

constexpr double kSlow = 1.15;  // devices that are slower than the fastest one by this factor may be dropped
constexpr double kBytesOfState = 12;  // per parameter: fp32 master weight and two moments
// The mean error of the cost model on published runs (docs/results/accuracy.md), and the smaller error when
// similar plans are compared.
constexpr double kPredictionUncertainty = 0.06, kNeighborUncertainty = 0.03;

class Responder {
 public:
  Responder(const Demand& usual_demand, const std::vector<Condition>& conditions, const RecoveryCosts& costs,
            const ResponseLimits& limits)
      : usual_demand_(usual_demand),
        costs_(costs),
        limits_(limits),
        conditions_(conditions),
        cluster_(with_conditions(usual_demand.cluster.profile(), conditions)),
        current_demand_(demand_on(usual_demand, cluster_, usual_demand.constants)),
        view_(cluster_),
        usual_view_(usual_demand.cluster) {}

  Feasible<std::vector<PlannedOption>> run(const Plan& plan) {
    add(Response::stay, plan, 0.01, false);
    std::vector<double> speeds;
    for (const Device device : view_.map().devices()) speeds.push_back(cluster_.speed_of(device));
    std::vector<double> loads;
    for (const Condition& condition : conditions_)
      if (condition.cause == Cause::heavy_stage) {
        loads.resize(plan.pipelines.front().stages.size(), 1);
        if (condition.location >= 0 && condition.location < std::ssize(loads))
          loads[static_cast<std::size_t>(condition.location)] = condition.factor;
      }
    if (const auto shared = shared_by_speed(plan, speeds))
      add(Response::share, *shared, kNeighborUncertainty, true);
    if (const auto cut = cut_by_speed(plan, usual_demand_.model, speeds, loads, head_in_layers(plan)))
      add(Response::recut, *cut, kNeighborUncertainty, true);
    if (const auto rest = without_slow_replicas(plan, speeds_with_networks(speeds), 1 / kSlow))
      add(Response::drop, *rest, kNeighborUncertainty, true);
    for (const Plan& known_plan : limits_.known_plans)
      add(Response::replan, known_plan, kPredictionUncertainty, true);
    if (view_.num_devices() > limits_.max_searched_devices) return std::move(options_);
    if (const Feasible<void> planned = add_planned(); !planned) return tl::unexpected(planned.error());
    add_without_slow();
    return std::move(options_);
  }

 private:
  void add(Response response, const Plan& plan, double uncertainty, bool moves_state) {
    const auto is_same = [&](const PlannedOption& known) {
      return known.plan == plan && known.dropped.empty();
    };
    if (std::any_of(options_.begin(), options_.end(), is_same) || find_problem(plan, usual_demand_.model))
      return;
    if (response != Response::stay && !peak_memory_of(current_demand_, view_, plan).fits()) return;
    PlannedOption planned_option{{.response = response, .uncertainty = uncertainty}, plan};
    planned_option.option.step_seconds = seconds_of(current_demand_, view_, plan);
    planned_option.option.usual_seconds = seconds_of(usual_demand_, usual_view_, plan);
    planned_option.option.pause_seconds =
        response == Response::stay ? 0 : pause_of(costs_, usual_demand_.model, plan, moves_state);
    planned_option.option.devices = num_devices(plan);
    options_.push_back(std::move(planned_option));
  }

  // The cost of the head relative to a layer, predicted by the cost model and corrected by measurements.
  std::optional<double> head_in_layers(const Plan& plan) const {
    if (plan.pipelines.front().stages.size() < 2) return std::nullopt;
    BlockTimes block_times{};
    for (const StageWork& stage : stage_work(plan, usual_demand_.model, usual_demand_.cluster))
      for (std::size_t role = 0; role < kBlockRoles; ++role)
        block_times[role].predicted += stage.compute[role];
    const double layers = block_times[static_cast<std::size_t>(BlockRole::layer)].predicted,
                 head = block_times[static_cast<std::size_t>(BlockRole::head)].predicted;
    if (layers <= 0 || head <= 0) return std::nullopt;
    return head * usual_demand_.constants.head_residual * static_cast<double>(usual_demand_.model.layers) /
           layers;
  }

  // Device speeds, where devices on nodes with a slow network are treated as slow.
  std::vector<double> speeds_with_networks(std::vector<double> speeds) const {
    for (std::size_t i = 0; i < speeds.size(); ++i)
      for (const Condition& condition : conditions_)
        if (condition.cause == Cause::link &&
            cluster_.node_of(view_.map().devices()[i]) == condition.location)
          speeds[i] /= condition.factor;
    return speeds;
  }

  Feasible<void> add_planned() {
    const Feasible<SearchResult> result =
        find_plan(current_demand_, view_, search_limits(limits_, view_.num_devices(), limits_.alternatives));
    if (!result) return tl::unexpected(result.error());
    add(Response::replan, result->plan, kPredictionUncertainty, true);
    for (const Alternative& alternative : result->alternatives)
      // The search also returns plans that are faster but violate constraints. They are skipped.
      if (alternative.peak_memory.fits() && alternative.objective >= result->objective * (1 - 1e-9))
        add(Response::replan, alternative.plan, kPredictionUncertainty, true);
    return {};
  }

  // Adds the planner's best plan without slow devices and without nodes that have a slow network.
  void add_without_slow() {
    HardwareProfile profile = cluster_.profile();
    std::vector<int> dropped_devices;
    for (const SpeedFactor& slow : profile.speed_factors)
      if (slow.factor < 1 / kSlow) dropped_devices.push_back(slow.device);
    for (const Condition& condition : conditions_)
      if (condition.cause == Cause::link)
        for (int d = 0; d < cluster_.num_devices(); ++d)
          if (cluster_.node_of(Device{d}) == condition.location) dropped_devices.push_back(d);
    for (const int device : profile.missing_devices) std::erase(dropped_devices, device);
    std::sort(dropped_devices.begin(), dropped_devices.end());
    dropped_devices.erase(std::unique(dropped_devices.begin(), dropped_devices.end()), dropped_devices.end());
    if (dropped_devices.empty() || std::ssize(dropped_devices) * 2 > view_.num_devices()) return;
    for (const int device : dropped_devices) profile.missing_devices.push_back(device);
    std::sort(profile.missing_devices.begin(), profile.missing_devices.end());
    std::erase_if(profile.speed_factors, [&](const SpeedFactor& slow) {
      return std::binary_search(dropped_devices.begin(), dropped_devices.end(), slow.device);
    });
    const Cluster remaining_cluster(profile);
    const Demand demand = demand_on(usual_demand_, remaining_cluster, usual_demand_.constants);
    const ClusterView cluster_view(remaining_cluster);
    const auto result = find_plan(demand, cluster_view, search_limits(limits_, view_.num_devices(), 0));
    if (!result) return;  // the model does not fit on the remaining devices
    PlannedOption planned_option{
        {.response = Response::drop, .uncertainty = kPredictionUncertainty}, result->plan, dropped_devices};
    planned_option.option.step_seconds = planned_option.option.usual_seconds = result->step.seconds;
    planned_option.option.pause_seconds = pause_of(costs_, usual_demand_.model, result->plan, true);
    planned_option.option.devices = num_devices(result->plan);
    options_.push_back(std::move(planned_option));
  }

  const Demand& usual_demand_;
  const RecoveryCosts& costs_;
  const ResponseLimits& limits_;
  const std::vector<Condition>& conditions_;
  const Cluster cluster_;  // under the current conditions
  const Demand current_demand_;
  const ClusterView view_, usual_view_;
  std::vector<PlannedOption> options_;
};

}  // namespace

SearchLimits search_limits(const ResponseLimits& limits, int num_devices, int alternatives) {
  return {.max_simulations = limits.max_simulations,
          .alternatives = alternatives,
          .refines = num_devices <= limits.max_refined_devices};
}

double pause_of(const RecoveryCosts& costs, const ModelSpec& model, const Plan& plan, bool moves_state) {
  if (!moves_state) return costs.switch_seconds;
  const double bytes = kBytesOfState * static_cast<double>(num_parameters(model)) / num_devices(plan);
  return costs.switch_seconds + costs.move_seconds(bytes);
}

Feasible<std::vector<PlannedOption>> responses(const Demand& usual_demand, const Plan& plan,
                                               const std::vector<Condition>& conditions,
                                               const RecoveryCosts& costs, const ResponseLimits& limits) {
  return Responder(usual_demand, conditions, costs, limits).run(plan);
}

}  // namespace optimus
