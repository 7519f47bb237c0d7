// Implements scripted_conditions.h.
#include "adapt/scripted_conditions.h"

#include <algorithm>

namespace optimus {

std::vector<Finding> scripted_findings(const ScriptedConditions& script, double now, const Cluster& cluster,
                                       std::int64_t step) {
  const double at_now = now - script.begins;
  std::vector<Finding> result;
  for (const auto& [condition, at, length] : script.line.conditions) {
    const int places = condition.cause == Cause::device ? cluster.num_devices() : cluster.num_nodes();
    if (at <= at_now && at_now < at + length && condition.location >= 0 && condition.location < places)
      result.push_back({condition.cause, {condition.location}, condition.factor, 0, step});
  }
  return result;
}

double seconds_until_change(const ScriptedConditions& script, double now, double horizon) {
  const double at_now = now - script.begins;
  double remainder = horizon;
  for (const TimedCondition& condition : script.line.conditions)
    for (const double change : {condition.begin, condition.begin + condition.length})
      if (change > at_now) remainder = std::min(remainder, change - at_now);
  return remainder;
}

}  // namespace optimus
