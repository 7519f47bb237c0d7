// Scripted conditions: a timeline of conditions that the oracle policy knows in advance. They replace what
// the detector finds. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "adapt/detect.h"
#include "adapt/time_line.h"

namespace optimus {

struct ScriptedConditions {
  TimeLine line;
  double begins = 0;  // time of the controller's clock at which the timeline starts, in seconds
};

// The conditions of the timeline that are active now, as findings of this step. Locations that the cluster
// lacks are skipped.
std::vector<Finding> scripted_findings(const ScriptedConditions& script, double now, const Cluster& cluster,
                                       std::int64_t step);

// Seconds until a condition begins or ends, at most `horizon`.
double seconds_until_change(const ScriptedConditions& script, double now, double horizon);

}  // namespace optimus
