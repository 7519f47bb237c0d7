// Implements line_trial.h for node traces.
#include <algorithm>
#include <map>

#include "trials/line_trial.h"

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
  // A node is usable when it is ready and prepared; it is lost when it leaves.
  std::map<double, std::pair<int, int>> changes;  // instant -> (joined, lost)
  std::map<int, double> ready;                    // of present nodes
  for (const NodeEvent& event : one.trace.events) {
    if (event.is_add) {
      ready[event.node] =
          event.seconds + one.ready_seconds + (event.seconds > 0 ? one.costs.prepare_seconds : 0);
      changes[ready[event.node]].first += 1;
    } else if (const auto it = ready.find(event.node); it != ready.end()) {
      if (it->second <= event.seconds)
        changes[event.seconds].second += 1;
      else
        changes[it->second].first -= 1;  // lost before it was ready
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
  result.detection_steps = 0;  // a joining node announces itself
  return result;
}

}  // namespace optimus
