// Implements timeline_trial.h for timelines: determines when each set of conditions is active, which plans
// respond to it, and the step time of each plan under each set.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "trials/timeline_trial.h"

namespace optimus {
namespace {

// The active conditions in one segment, as indices into ConditionTimeline::conditions, and the absent nodes.
struct ActiveConditions {
  std::vector<std::size_t> conditions;
  std::vector<int> absent_nodes;  // ascending
  auto operator<=>(const ActiveConditions&) const = default;
};

ActiveConditions active_conditions(const ConditionTimeline& timeline, double at) {
  ActiveConditions current_conditions;
  for (std::size_t i = 0; i < timeline.conditions.size(); ++i)
    if (timeline.conditions[i].begin <= at &&
        at < timeline.conditions[i].begin + timeline.conditions[i].length)
      current_conditions.conditions.push_back(i);
  std::set<int> absent_nodes;
  for (const TimedLoss& timed_loss : timeline.losses)
    if (timed_loss.begin <= at && at < timed_loss.begin + timed_loss.length)
      absent_nodes.insert(timed_loss.node);
  current_conditions.absent_nodes.assign(absent_nodes.begin(), absent_nodes.end());
  return current_conditions;
}

bool contains_all(const std::vector<int>& superset, const std::vector<int>& subset) {
  return std::includes(superset.begin(), superset.end(), subset.begin(), subset.end());
}

std::vector<int> union_of(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> result;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(result));
  return result;
}

// Returns the profile without these devices and their speed factors.
HardwareProfile remove_devices(HardwareProfile profile, const std::vector<int>& devices) {
  profile.missing_devices = union_of(profile.missing_devices, devices);
  std::erase_if(profile.speed_factors, [&](const SpeedFactor& slow) {
    return std::binary_search(profile.missing_devices.begin(), profile.missing_devices.end(), slow.device);
  });
  return profile;
}

// A plan whose device indices are renumbered consecutively, in the order of the devices that it uses.
// `unused` lists the devices of `present` that the plan does not use.
struct RenumberedPlan {
  Plan plan;
  std::vector<int> unused;  // ascending
};
RenumberedPlan renumber(Plan plan, const std::vector<Device>& present) {
  std::vector<int> used_devices;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      used_devices.insert(used_devices.end(), stage.devices.begin(), stage.devices.end());
  std::sort(used_devices.begin(), used_devices.end());
  RenumberedPlan result{std::move(plan), {}};
  for (Pipeline& pipeline : result.plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices)
        device = static_cast<int>(std::lower_bound(used_devices.begin(), used_devices.end(), device) -
                                  used_devices.begin());
  for (int i = 0; i < std::ssize(present); ++i)
    if (!std::binary_search(used_devices.begin(), used_devices.end(), i))
      result.unused.push_back(present[static_cast<std::size_t>(i)].value);
  return result;
}

class TimelineTrial {
 public:
  TimelineTrial(const ConditionTimeline& timeline, const Demand& demand, const RecoveryCosts& costs)
      : timeline_(timeline), demand_(demand), present_(demand.cluster.present_devices()) {
    result_.costs = costs, result_.first_mode = 0;
    for (const Device device : present_)
      devices_of_node_[demand.cluster.node_of(device)].push_back(device.value);
    for (const TimedLoss& timed_loss : timeline.losses)
      if (timed_loss.node >= demand.cluster.num_nodes())
        throw UserError("{}: node {} does not exist; the cluster has {} nodes", demand.cluster.name(),
                        timed_loss.node, demand.cluster.num_nodes());
  }

  TrialCase run(const Plan& plan, const ResponseLimits& limits, ResponseTimer* timer) {
    make_segments();
    std::set<ActiveConditions> known_conditions;
    const auto add_once = [&](const ActiveConditions& active) {
      if (!known_conditions.insert(active).second) return;
      const double begin = timer && timer->clock ? timer->clock() : 0;
      add_responses(active, plan, limits);
      if (timer && timer->clock) timer->max_seconds = std::max(timer->max_seconds, timer->clock() - begin);
    };
    add_once({});  // the start plan is always the first mode
    for (const ActiveConditions& current_conditions : active_conditions_) add_once(current_conditions);
    std::map<ActiveConditions, std::vector<double>> seconds;
    for (std::size_t s = 0; s < active_conditions_.size(); ++s) {
      auto& row = seconds[active_conditions_[s]];
      if (row.empty()) row = seconds_of_modes(active_conditions_[s]);
      result_.segments[s].step_seconds = row;
    }
    return std::move(result_);
  }

 private:
  void make_segments() {
    std::set<double> instants = {0, timeline_.length};
    const auto add = [&](double at, double length) {
      instants.insert({std::min(timeline_.length, at), std::min(timeline_.length, at + length)});
    };
    for (const TimedCondition& condition : timeline_.conditions) add(condition.begin, condition.length);
    for (const TimedLoss& timed_loss : timeline_.losses) add(timed_loss.begin, timed_loss.length);
    for (auto it = instants.begin(); std::next(it) != instants.end(); ++it) {
      TrialSegment segment;
      segment.begin = *it, segment.end = *std::next(it);
      const ActiveConditions current_conditions = active_conditions(timeline_, segment.begin);
      segment.is_loss = !active_conditions_.empty() && !contains_all(active_conditions_.back().absent_nodes,
                                                                     current_conditions.absent_nodes);
      segment.is_by_name = true;
      for (const std::size_t i : current_conditions.conditions)
        if (const TimedCondition& condition = timeline_.conditions[i];
            affects_present_nodes(condition.condition, current_conditions))
          segment.conditions.push_back(
              {condition.condition.cause, condition.condition.factor, segment.begin - condition.begin});
      active_conditions_.push_back(current_conditions);
      result_.segments.push_back(std::move(segment));
    }
  }

  std::vector<int> devices_of(const std::vector<int>& nodes) const {
    std::vector<int> devices;
    for (const int node : nodes)
      if (const auto it = devices_of_node_.find(node); it != devices_of_node_.end())
        devices.insert(devices.end(), it->second.begin(), it->second.end());
    std::sort(devices.begin(), devices.end());
    return devices;
  }

  // Whether the condition has an effect. Conditions on absent nodes have no effect.
  bool affects_present_nodes(const Condition& condition, const ActiveConditions& active) const {
    if (condition.cause == Cause::cluster) return true;
    const bool is_of_device = condition.cause == Cause::device && condition.location >= 0 &&
                              condition.location < demand_.cluster.num_devices();
    const int node = is_of_device ? demand_.cluster.node_of(Device{condition.location}) : condition.location;
    return !std::binary_search(active.absent_nodes.begin(), active.absent_nodes.end(), node);
  }

  std::vector<Condition> conditions_of(const ActiveConditions& active) const {
    std::vector<Condition> conditions;
    for (const std::size_t i : active.conditions)
      if (affects_present_nodes(timeline_.conditions[i].condition, active))
        conditions.push_back(timeline_.conditions[i].condition);
    return conditions;
  }

  // Adds the plans that respond to these conditions on the remaining devices.
  void add_responses(const ActiveConditions& active, const Plan& plan, const ResponseLimits& limits) {
    const std::vector<int> lost_devices = devices_of(active.absent_nodes);
    if (lost_devices.size() == present_.size()) return;
    const Cluster remaining_cluster(remove_devices(demand_.cluster.profile(), lost_devices));
    const Demand demand = demand_on(demand_, remaining_cluster, demand_.constants);
    const std::optional<RenumberedPlan> base =
        lost_devices.empty() ? RenumberedPlan{plan, {}} : plan_for(demand, plan, lost_devices, limits);
    if (!base) return;
    const Cluster used_cluster(remove_devices(remaining_cluster.profile(), base->unused));
    ResponseLimits fitting_limits = limits;
    std::erase_if(fitting_limits.known_plans,
                  [&](const Plan& known) { return num_devices(known) > used_cluster.num_present(); });
    for (PlannedOption& option :
         value_or_throw(responses(demand_on(demand_, used_cluster, demand_.constants), base->plan,
                                  conditions_of(active), result_.costs, fitting_limits))) {
      option.dropped = union_of(option.dropped, union_of(lost_devices, base->unused));
      add_mode(option);
    }
  }

  // The base plan after losses. On very large clusters, this is the plan without the replicas that use lost
  // devices, if any replicas remain. Otherwise it is the plan that the planner finds within the search limits
  // of a real run. Returns nullopt if the model does not fit.
  std::optional<RenumberedPlan> plan_for(const Demand& demand, const Plan& plan,
                                         const std::vector<int>& lost_devices,
                                         const ResponseLimits& limits) const {
    if (std::ssize(present_) > limits.max_searched_devices) {
      std::vector<double> speeds;
      for (const Device device : present_)
        speeds.push_back(std::binary_search(lost_devices.begin(), lost_devices.end(), device.value) ? 1e-6
                                                                                                    : 1.0);
      if (const auto without_lost = without_slow_replicas(plan, speeds, 0.5)) {
        RenumberedPlan result = renumber(*without_lost, present_);
        const Cluster used_cluster(remove_devices(demand.cluster.profile(), result.unused));
        const ClusterView cluster_view(used_cluster);
        if (peak_memory_of(demand_on(demand_, used_cluster, demand_.constants), cluster_view, result.plan)
                .fits())
          return result;
      }
    }
    Feasible<SearchResult> result = find_plan(demand, ClusterView(demand.cluster),
                                              search_limits(limits, demand.cluster.num_present(), 0));
    if (!result) return std::nullopt;  // the model does not fit on the remaining devices
    return RenumberedPlan{std::move(result->plan), {}};
  }

  void add_mode(const PlannedOption& option) {
    const auto is_same = [&](const PlannedOption& known) {
      return known.plan == option.plan && known.dropped == option.dropped;
    };
    if (std::any_of(plans_.begin(), plans_.end(), is_same)) return;
    plans_.push_back(option);
    const bool is_replanned = option.option.response == Response::stay;
    TrialMode mode;
    mode.response = plans_.size() == 1 ? Response::resume
                    : is_replanned     ? Response::replan
                                       : option.option.response;
    mode.devices = option.option.devices, mode.usual_seconds = option.option.usual_seconds;
    mode.pause_seconds = pause_of(result_.costs, demand_.model, option.plan, true);
    result_.modes.push_back(mode);
  }

  std::vector<double> seconds_of_modes(const ActiveConditions& active) const {
    const HardwareProfile current_profile = with_conditions(demand_.cluster.profile(), conditions_of(active));
    const std::vector<int> lost_devices = devices_of(active.absent_nodes);
    std::map<std::vector<int>, std::vector<std::size_t>> by_dropped;
    for (std::size_t m = 0; m < plans_.size(); ++m)
      if (!uses_any(plans_[m], lost_devices)) by_dropped[plans_[m].dropped].push_back(m);
    std::vector<double> seconds(plans_.size(), 0);
    for (const auto& [dropped, modes] : by_dropped) {
      const Cluster cluster(remove_devices(current_profile, dropped));
      const ClusterView cluster_view(cluster);
      for (const std::size_t m : modes) seconds[m] = seconds_of(demand_, cluster_view, plans_[m].plan);
    }
    return seconds;
  }

  // Whether the plan uses any of the lost devices. A plan uses the first devices that are not in `dropped`.
  bool uses_any(const PlannedOption& option, const std::vector<int>& lost_devices) const {
    if (lost_devices.empty()) return false;
    int remaining = num_device_numbers(option.plan);
    for (const Device device : present_) {
      if (std::binary_search(option.dropped.begin(), option.dropped.end(), device.value)) continue;
      if (remaining-- == 0) return false;
      if (std::binary_search(lost_devices.begin(), lost_devices.end(), device.value)) return true;
    }
    return false;
  }

  const ConditionTimeline& timeline_;
  const Demand& demand_;
  const std::vector<Device> present_;
  std::map<int, std::vector<int>> devices_of_node_;
  std::vector<ActiveConditions> active_conditions_;  // [segment]
  std::vector<PlannedOption> plans_;                 // [mode]
  TrialCase result_;
};

}  // namespace

TrialCase trial_of(const ConditionTimeline& timeline, const Demand& demand, const Plan& plan,
                   const RecoveryCosts& costs, const ResponseLimits& limits, ResponseTimer* timer) {
  return TimelineTrial(timeline, demand, costs).run(plan, limits, timer);
}

}  // namespace optimus
