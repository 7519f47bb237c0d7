// See scenario.h: trials of traces, and time lines drawn at random. Trials of time lines are made in line_trial.cpp.
#include "adapt/scenario.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "adapt/lifetime.h"
#include "base/random.h"

namespace optimus {
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
  // InfiniteHBD's outages: of median 33 h, whose logarithm spreads by 2 (environment_traces.cpp).
  constexpr double kRepair = 33 * 3600, kRepairSpread = 2, kMostAway = 1e8;
  const double losses = rates.loss_per_hour * cluster.num_nodes() / 3600;
  for (double at = losses > 0 ? -std::log(1 - uniform()) / losses : length; at < length;
       at += -std::log(1 - uniform()) / losses) {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    const double normal = radius * std::cos(2 * std::numbers::pi * uniform());
    line.losses.push_back({static_cast<int>(uniform() * cluster.num_nodes()), at,
                           std::min(kMostAway, kRepair * std::exp(kRepairSpread * normal))});
  }
  return line;
}

}  // namespace optimus
