// Implements line_trial.h for timelines: determines which conditions are in force when, which plans respond
// to them, and the step time of each plan under every set of conditions.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "trials/line_trial.h"

namespace optimus {
namespace {

// The state between two instants: indices into TimeLine::conditions, and absent nodes.
struct InForce {
  std::vector<std::size_t> conditions;
  std::vector<int> away;  // ascending
  auto operator<=>(const InForce&) const = default;
};

InForce in_force(const TimeLine& line, double at) {
  InForce now;
  for (std::size_t i = 0; i < line.conditions.size(); ++i)
    if (line.conditions[i].at <= at && at < line.conditions[i].at + line.conditions[i].length)
      now.conditions.push_back(i);
  std::set<int> away;
  for (const TimedLoss& one : line.losses)
    if (one.at <= at && at < one.at + one.length) away.insert(one.node);
  now.away.assign(away.begin(), away.end());
  return now;
}

bool has_all(const std::vector<int>& all, const std::vector<int>& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

std::vector<int> merged(const std::vector<int>& one, const std::vector<int>& other) {
  std::vector<int> both;
  std::set_union(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(both));
  return both;
}

// The machines without these devices and their speed factors.
HardwareProfile without(HardwareProfile profile, const std::vector<int>& devices) {
  profile.missing_devices = merged(profile.missing_devices, devices);
  std::erase_if(profile.speed_factors, [&](const SpeedFactor& slow) {
    return std::binary_search(profile.missing_devices.begin(), profile.missing_devices.end(), slow.device);
  });
  return profile;
}

// A plan renumbered to the devices that it uses, in their order; `unused` lists the other devices of
// `present`.
struct Compact {
  Plan plan;
  std::vector<int> unused;  // ascending
};
Compact compact(Plan plan, const std::vector<Device>& present) {
  std::vector<int> used;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      used.insert(used.end(), stage.devices.begin(), stage.devices.end());
  std::sort(used.begin(), used.end());
  Compact result{std::move(plan), {}};
  for (Pipeline& pipeline : result.plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices)
        device = static_cast<int>(std::lower_bound(used.begin(), used.end(), device) - used.begin());
  for (int i = 0; i < std::ssize(present); ++i)
    if (!std::binary_search(used.begin(), used.end(), i))
      result.unused.push_back(present[static_cast<std::size_t>(i)].value);
  return result;
}

class LineTrial {
 public:
  LineTrial(const TimeLine& line, const Demand& demand, const RecoveryCosts& costs)
      : line_(line), demand_(demand), present_(demand.cluster.present_devices()) {
    result_.costs = costs, result_.first_mode = 0;
    for (const Device device : present_)
      devices_of_node_[demand.cluster.node_of(device)].push_back(device.value);
    for (const TimedLoss& one : line.losses)
      if (one.node >= demand.cluster.num_nodes())
        throw UserError("{}: node {} does not exist; the cluster has {} nodes", demand.cluster.name(),
                        one.node, demand.cluster.num_nodes());
  }

  TrialCase run(const Plan& plan, const ResponseLimits& limits, TimedResponses* timed) {
    cut();
    std::set<InForce> known;
    const auto take = [&](const InForce& now) {
      if (!known.insert(now).second) return;
      const double begin = timed && timed->clock ? timed->clock() : 0;
      answer(now, plan, limits);
      if (timed && timed->clock) timed->longest = std::max(timed->longest, timed->clock() - begin);
    };
    take({});  // the start plan is always the first mode
    for (const InForce& now : in_force_) take(now);
    std::map<InForce, std::vector<double>> seconds;
    for (std::size_t s = 0; s < in_force_.size(); ++s) {
      auto& row = seconds[in_force_[s]];
      if (row.empty()) row = seconds_under(in_force_[s]);
      result_.segments[s].step_seconds = row;
    }
    return std::move(result_);
  }

 private:
  void cut() {
    std::set<double> instants = {0, line_.length};
    const auto add = [&](double at, double length) {
      instants.insert({std::min(line_.length, at), std::min(line_.length, at + length)});
    };
    for (const TimedCondition& one : line_.conditions) add(one.at, one.length);
    for (const TimedLoss& one : line_.losses) add(one.at, one.length);
    for (auto it = instants.begin(); std::next(it) != instants.end(); ++it) {
      TrialSegment segment;
      segment.begin = *it, segment.end = *std::next(it);
      const InForce now = in_force(line_, segment.begin);
      segment.is_loss = !in_force_.empty() && !has_all(in_force_.back().away, now.away);
      segment.is_by_name = true;
      for (const std::size_t i : now.conditions)
        if (const TimedCondition& one = line_.conditions[i]; concerns_those_there(one.condition, now))
          segment.conditions.push_back({one.condition.cause, one.condition.factor, segment.begin - one.at});
      in_force_.push_back(now);
      result_.segments.push_back(std::move(segment));
    }
  }

  std::vector<int> devices_of(const std::vector<int>& nodes) const {
    std::vector<int> devices;
    for (const int node : nodes)
      if (const auto own = devices_of_node_.find(node); own != devices_of_node_.end())
        devices.insert(devices.end(), own->second.begin(), own->second.end());
    std::sort(devices.begin(), devices.end());
    return devices;
  }

  // Conditions of absent nodes have no effect.
  bool concerns_those_there(const Condition& one, const InForce& now) const {
    if (one.cause == Cause::cluster) return true;
    const bool is_of_device =
        one.cause == Cause::device && one.where >= 0 && one.where < demand_.cluster.num_devices();
    const int node = is_of_device ? demand_.cluster.node_of(Device{one.where}) : one.where;
    return !std::binary_search(now.away.begin(), now.away.end(), node);
  }

  std::vector<Condition> conditions_of(const InForce& now) const {
    std::vector<Condition> all;
    for (const std::size_t i : now.conditions)
      if (concerns_those_there(line_.conditions[i].condition, now))
        all.push_back(line_.conditions[i].condition);
    return all;
  }

  // Adds the plans for the present devices.
  void answer(const InForce& now, const Plan& plan, const ResponseLimits& limits) {
    const std::vector<int> gone = devices_of(now.away);
    if (gone.size() == present_.size()) return;
    const Cluster rest(without(demand_.cluster.profile(), gone));
    const Demand demand = demand_on(demand_, rest, demand_.constants);
    const std::optional<Compact> base =
        gone.empty() ? Compact{plan, {}} : plan_for(demand, plan, gone, limits);
    if (!base) return;
    const Cluster used(without(rest.profile(), base->unused));
    ResponseLimits own = limits;
    std::erase_if(own.known, [&](const Plan& known) { return num_devices(known) > used.num_present(); });
    for (PlannedOption& option : responses(demand_on(demand_, used, demand_.constants), base->plan,
                                           conditions_of(now), result_.costs, own)) {
      option.dropped = merged(option.dropped, merged(gone, base->unused));
      add_mode(option);
    }
  }

  // Very large clusters: the plan without the replicas of the lost devices, if some are left. Otherwise the
  // planner's result within the time limit of a real run.
  std::optional<Compact> plan_for(const Demand& demand, const Plan& plan, const std::vector<int>& gone,
                                  const ResponseLimits& limits) const {
    if (std::ssize(present_) > limits.searched_devices) {
      std::vector<double> speeds;
      for (const Device device : present_)
        speeds.push_back(std::binary_search(gone.begin(), gone.end(), device.value) ? 1e-6 : 1.0);
      if (const auto without_them = without_slow_replicas(plan, speeds, 0.5)) {
        Compact found = compact(*without_them, present_);
        const Cluster used(without(demand.cluster.profile(), found.unused));
        const Ground ground(used);
        if (fill_of(demand_on(demand_, used, demand_.constants), ground, found.plan).fits()) return found;
      }
    }
    try {
      return Compact{
          search(demand, Ground(demand.cluster), search_limits(limits, demand.cluster.num_present(), 0)).plan,
          {}};
    } catch (const UserError&) {  // the model does not fit on the remaining devices
      return std::nullopt;
    }
  }

  void add_mode(const PlannedOption& option) {
    const auto is_same = [&](const PlannedOption& known) {
      return known.plan == option.plan && known.dropped == option.dropped;
    };
    if (std::any_of(plans_.begin(), plans_.end(), is_same)) return;
    plans_.push_back(option);
    const bool is_of_rest = option.option.response == Response::stay;
    TrialMode mode;
    mode.response = plans_.size() == 1 ? Response::resume
                    : is_of_rest       ? Response::replan
                                       : option.option.response;
    mode.devices = option.option.devices, mode.usual_seconds = option.option.usual_seconds;
    mode.pause_seconds = pause_of(result_.costs, demand_.model, option.plan, true);
    result_.modes.push_back(mode);
  }

  std::vector<double> seconds_under(const InForce& force) const {
    const HardwareProfile now = with_conditions(demand_.cluster.profile(), conditions_of(force));
    const std::vector<int> gone = devices_of(force.away);
    std::map<std::vector<int>, std::vector<std::size_t>> by_dropped;
    for (std::size_t m = 0; m < plans_.size(); ++m)
      if (!uses_any(plans_[m], gone)) by_dropped[plans_[m].dropped].push_back(m);
    std::vector<double> seconds(plans_.size(), 0);
    for (const auto& [dropped, modes] : by_dropped) {
      const Cluster cluster(without(now, dropped));
      const Ground ground(cluster);
      for (const std::size_t m : modes) seconds[m] = seconds_of(demand_, ground, plans_[m].plan);
    }
    return seconds;
  }

  // A plan uses the first devices, in order, that are not dropped.
  bool uses_any(const PlannedOption& option, const std::vector<int>& gone) const {
    if (gone.empty()) return false;
    int left = num_device_numbers(option.plan);
    for (const Device device : present_) {
      if (std::binary_search(option.dropped.begin(), option.dropped.end(), device.value)) continue;
      if (left-- == 0) return false;
      if (std::binary_search(gone.begin(), gone.end(), device.value)) return true;
    }
    return false;
  }

  const TimeLine& line_;
  const Demand& demand_;
  const std::vector<Device> present_;
  std::map<int, std::vector<int>> devices_of_node_;
  std::vector<InForce> in_force_;     // [segment]
  std::vector<PlannedOption> plans_;  // [mode]
  TrialCase result_;
};

}  // namespace

TrialCase trial_of(const TimeLine& line, const Demand& demand, const Plan& plan, const RecoveryCosts& costs,
                   const ResponseLimits& limits, TimedResponses* timed) {
  return LineTrial(line, demand, costs).run(plan, limits, timed);
}

}  // namespace optimus
