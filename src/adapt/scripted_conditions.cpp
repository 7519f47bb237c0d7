// Implements scripted_conditions.h.
#include "adapt/scripted_conditions.h"

#include <algorithm>

namespace optimus {

std::vector<Finding> scripted_findings(const ScriptedConditions& script, double now, const Cluster& cluster,
                                       std::int64_t step) {
  const double elapsed = now - script.begin_time;
  std::vector<Finding> result;
  for (const auto& [condition, begin, length] : script.timeline.conditions) {
    const int num_locations = condition.cause == Cause::device ? cluster.num_devices() : cluster.num_nodes();
    if (begin <= elapsed && elapsed < begin + length && condition.location >= 0 &&
        condition.location < num_locations)
      result.push_back({condition.cause, {condition.location}, condition.factor, 0, step});
  }
  return result;
}

double seconds_until_change(const ScriptedConditions& script, double now, double horizon) {
  const double elapsed = now - script.begin_time;
  double remainder = horizon;
  for (const TimedCondition& condition : script.timeline.conditions)
    for (const double change : {condition.begin, condition.begin + condition.length})
      if (change > elapsed) remainder = std::min(remainder, change - elapsed);
  return remainder;
}

}  // namespace optimus
