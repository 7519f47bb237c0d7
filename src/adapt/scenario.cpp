// See scenario.h.
#include "adapt/scenario.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "adapt/lifetime.h"
#include "base/error.h"
#include "base/random.h"

namespace optimus {
namespace {

// What is in force between two instants: places of TimeLine::conditions.
using ConditionSet = std::vector<std::size_t>;

std::vector<Condition> conditions_of(const TimeLine& line, const ConditionSet& set) {
  std::vector<Condition> all;
  for (const std::size_t i : set) all.push_back(line.conditions[i].condition);
  return all;
}

ConditionSet in_force(const TimeLine& line, double at) {
  ConditionSet set;
  for (std::size_t i = 0; i < line.conditions.size(); ++i)
    if (line.conditions[i].at <= at && at < line.conditions[i].at + line.conditions[i].length)
      set.push_back(i);
  return set;
}

class LineTrial {
 public:
  LineTrial(const TimeLine& line, const Demand& demand, const RecoveryCosts& costs)
      : line_(line), demand_(demand) {
    result_.costs = costs, result_.first_mode = 0;
  }

  TrialCase run(const Plan& plan, const ResponseLimits& limits, TimedResponses* timed) {
    cut();
    std::map<ConditionSet, std::size_t> known;
    for (const ConditionSet& set : sets_) {
      if (known.contains(set)) continue;
      known.emplace(set, known.size());
      const double begin = timed && timed->clock ? timed->clock() : 0;
      const std::vector<PlannedOption> options =
          responses(demand_, plan, conditions_of(line_, set), result_.costs, limits);
      if (timed && timed->clock) timed->longest = std::max(timed->longest, timed->clock() - begin);
      for (const PlannedOption& option : options) add_mode(option);
    }
    std::map<ConditionSet, std::vector<double>> seconds;
    for (std::size_t s = 0; s < sets_.size(); ++s) {
      auto& row = seconds[sets_[s]];
      if (row.empty()) row = seconds_under(sets_[s]);
      result_.segments[s].step_seconds = row;
    }
    return std::move(result_);
  }

 private:
  void cut() {
    std::set<double> instants = {0, line_.length};
    for (const TimedCondition& one : line_.conditions) {
      instants.insert(std::min(line_.length, one.at));
      instants.insert(std::min(line_.length, one.at + one.length));
    }
    for (auto it = instants.begin(); std::next(it) != instants.end(); ++it) {
      TrialSegment segment;
      segment.begin = *it, segment.end = *std::next(it);
      sets_.push_back(in_force(line_, segment.begin));
      for (const std::size_t i : sets_.back()) {
        const TimedCondition& one = line_.conditions[i];
        segment.conditions.push_back({one.condition.cause, one.condition.factor, segment.begin - one.at});
      }
      result_.segments.push_back(std::move(segment));
    }
  }

  void add_mode(const PlannedOption& option) {
    const auto is_same = [&](const PlannedOption& known) {
      return known.plan == option.plan && known.dropped == option.dropped;
    };
    if (std::any_of(plans_.begin(), plans_.end(), is_same)) return;
    plans_.push_back(option);
    TrialMode mode;
    mode.response = plans_.size() == 1 ? Response::resume : option.option.response;
    mode.devices = option.option.devices, mode.usual_seconds = option.option.usual_seconds;
    mode.pause_seconds = pause_of(result_.costs, demand_.model, option.plan, true);
    result_.modes.push_back(mode);
  }

  std::vector<double> seconds_under(const ConditionSet& set) const {
    const HardwareProfile now = with_conditions(demand_.cluster.profile(), conditions_of(line_, set));
    std::map<std::vector<int>, std::vector<std::size_t>> by_dropped;
    for (std::size_t m = 0; m < plans_.size(); ++m) by_dropped[plans_[m].dropped].push_back(m);
    std::vector<double> seconds(plans_.size(), 0);
    for (const auto& [dropped, modes] : by_dropped) {
      HardwareProfile profile = now;
      for (const int device : dropped)
        if (!std::binary_search(now.missing_devices.begin(), now.missing_devices.end(), device))
          profile.missing_devices.push_back(device);
      std::sort(profile.missing_devices.begin(), profile.missing_devices.end());
      std::erase_if(profile.speed_factors, [&](const SpeedFactor& slow) {
        return std::binary_search(profile.missing_devices.begin(), profile.missing_devices.end(),
                                  slow.device);
      });
      const Cluster cluster(profile);
      const Ground ground(cluster);
      for (const std::size_t m : modes) seconds[m] = seconds_of(demand_, ground, plans_[m].plan);
    }
    return seconds;
  }

  const TimeLine& line_;
  const Demand& demand_;
  std::vector<ConditionSet> sets_;    // [segment]
  std::vector<PlannedOption> plans_;  // [mode]
  TrialCase result_;
};

}  // namespace

TrialCase trial_of(const TimeLine& line, const Demand& demand, const Plan& plan, const RecoveryCosts& costs,
                   const ResponseLimits& limits, TimedResponses* timed) {
  return LineTrial(line, demand, costs).run(plan, limits, timed);
}

TrialCase trial_of(const ReplayCase& one, int devices_per_node) {
  TrialCase result;
  result.costs = one.costs;
  const int most = one.throughput.most();
  const auto seconds_on = [&](int nodes) {
    const double speed = one.throughput.at(nodes);
    return speed > 0 ? one.batch / speed : 0;
  };
  for (int n = one.throughput.fewest; n <= most; ++n) {
    TrialMode mode{Response::replan, n * devices_per_node, seconds_on(n), 0};
    mode.pause_seconds = one.costs.switch_seconds + one.costs.move_seconds(one.costs.join_bytes);
    mode.shrink_seconds = one.costs.switch_seconds + one.costs.move_seconds(one.costs.loss_bytes);
    result.modes.push_back(mode);
  }
  // A node is of use when it is ready and prepared; it is lost when it goes.
  std::map<double, std::pair<int, int>> changes;  // instant -> (come, gone)
  std::map<int, double> ready;                    // of nodes that are there
  for (const NodeEvent& event : one.trace.events) {
    if (event.is_add) {
      ready[event.node] =
          event.seconds + one.ready_seconds + (event.seconds > 0 ? one.costs.prepare_seconds : 0);
      changes[ready[event.node]].first += 1;
    } else if (const auto it = ready.find(event.node); it != ready.end()) {
      if (it->second <= event.seconds)
        changes[event.seconds].second += 1;
      else
        changes[it->second].first -= 1;  // gone before it was ready
      ready.erase(it);
    }
  }
  changes[0], changes[one.trace.length];
  int nodes = 0;
  for (auto it = changes.begin(); it != changes.end() && it->first < one.trace.length; ++it) {
    nodes += it->second.first - it->second.second;
    TrialSegment segment{
        it->first, std::min(one.trace.length, std::next(it)->first), {}, it->second.second > 0};
    for (int n = one.throughput.fewest; n <= most; ++n)
      segment.step_seconds.push_back(n <= nodes ? seconds_on(n) : 0);
    result.segments.push_back(std::move(segment));
  }
  result.detection_steps = 0;  // who comes says so
  return result;
}

TimeLine random_time_line(const Cluster& cluster, double length, const ConditionRates& rates,
                          std::uint64_t seed) {
  const RandomKey key = RandomKey(seed).with("time line");
  std::uint64_t drawn = 0;
  const auto uniform = [&] { return random_uniform(key, drawn++); };
  TimeLine line{length, {}};
  const auto put = [&](Cause cause, int places, double per_hour, double least, double most) {
    const double rate = per_hour * places / 3600;
    for (double at = -std::log(1 - uniform()) / rate; at < length; at += -std::log(1 - uniform()) / rate) {
      const Lifetime lifetime = usual_lifetime(cause);
      const double radius = std::sqrt(-2 * std::log(1 - uniform()));
      const double normal = radius * std::cos(2 * std::numbers::pi * uniform());
      const double factor = least * std::pow(most / least, uniform());
      const int where = static_cast<int>(uniform() * places);
      line.conditions.push_back(
          {{cause, where, factor}, at, lifetime.median * std::exp(lifetime.spread * normal)});
    }
  };
  put(Cause::device, cluster.num_devices(), rates.device_per_hour, 1.1, 5);
  put(Cause::host, cluster.num_nodes(), rates.host_per_hour, 1.1, 2);
  put(Cause::link, cluster.num_nodes(), rates.link_per_hour, 1.15, 3);
  std::sort(line.conditions.begin(), line.conditions.end(),
            [](const TimedCondition& a, const TimedCondition& b) { return a.at < b.at; });
  return line;
}

}  // namespace optimus
