// Scripted conditions: a timeline of conditions that the oracle policy knows in advance. It replaces the
// findings of the detector. No side effects.
#pragma once

#include <cstdint>
#include <vector>

#include "adapt/condition_timeline.h"
#include "adapt/detect.h"

namespace optimus {

struct ScriptedConditions {
  ConditionTimeline timeline;
  double begin_time = 0;  // time of the controller's clock at which the timeline starts, in seconds
};

// Returns the currently active conditions of the timeline as findings of this step. Locations that do not
// exist in the cluster are skipped.
std::vector<Finding> scripted_findings(const ScriptedConditions& script, double now, const Cluster& cluster,
                                       std::int64_t step);

// Seconds until the next condition begins or ends, limited to `horizon`.
double seconds_until_change(const ScriptedConditions& script, double now, double horizon);

}  // namespace optimus
