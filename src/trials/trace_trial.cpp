// Implements timeline_trial.h for node traces.
#include <algorithm>
#include <map>

#include "trials/timeline_trial.h"

namespace optimus {

TrialCase trial_of(const ReplayCase& replay_case, int devices_per_node) {
  TrialCase result;
  result.costs = replay_case.costs;
  const int max_nodes = replay_case.throughput.max_nodes();
  const auto seconds_on = [&](int nodes) {
    const double speed = replay_case.throughput.at(nodes);
    return speed > 0 ? replay_case.batch / speed : 0;
  };
  for (int n = replay_case.throughput.min_nodes; n <= max_nodes; ++n) {
    TrialMode mode{Response::replan, n * devices_per_node, seconds_on(n), 0};
    mode.pause_seconds =
        replay_case.costs.switch_seconds + replay_case.costs.move_seconds(replay_case.costs.join_bytes);
    mode.shrink_seconds =
        replay_case.costs.switch_seconds + replay_case.costs.move_seconds(replay_case.costs.loss_bytes);
    result.modes.push_back(mode);
  }
  // A node is usable when it is ready and prepared. It is lost when it leaves.
  std::map<double, std::pair<int, int>> changes;  // instant -> (joined, lost)
  std::map<int, double> ready;                    // [node]: when it is usable; only present nodes
  for (const NodeEvent& event : replay_case.trace.events) {
    if (event.is_add) {
      ready[event.node] = event.seconds + replay_case.ready_seconds +
                          (event.seconds > 0 ? replay_case.costs.prepare_seconds : 0);
      changes[ready[event.node]].first += 1;
    } else if (const auto it = ready.find(event.node); it != ready.end()) {
      if (it->second <= event.seconds)
        changes[event.seconds].second += 1;
      else
        changes[it->second].first -= 1;  // lost before it was usable
      ready.erase(it);
    }
  }
  changes[0], changes[replay_case.trace.length];
  int nodes = 0;
  for (auto it = changes.begin(); it != changes.end() && it->first < replay_case.trace.length; ++it) {
    nodes += it->second.first - it->second.second;
    TrialSegment segment{
        it->first, std::min(replay_case.trace.length, std::next(it)->first), {}, it->second.second > 0};
    for (int n = replay_case.throughput.min_nodes; n <= max_nodes; ++n)
      segment.step_seconds.push_back(n <= nodes ? seconds_on(n) : 0);
    result.segments.push_back(std::move(segment));
  }
  result.detection_steps = 0;  // a joining node announces itself, so nothing has to be detected
  return result;
}

}  // namespace optimus
