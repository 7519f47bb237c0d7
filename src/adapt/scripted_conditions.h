// Scripted conditions: a timeline of conditions that the oracle policy knows in advance. They replace the
// findings of the detector. Pure.
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

// The conditions of the timeline that are active now, as findings of this step. Locations that do not exist
// in the cluster are skipped.
std::vector<Finding> scripted_findings(const ScriptedConditions& script, double now, const Cluster& cluster,
                                       std::int64_t step);

// Seconds until a condition begins or ends, at most `horizon`.
double seconds_until_change(const ScriptedConditions& script, double now, double horizon);

}  // namespace optimus
