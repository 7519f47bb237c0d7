// Converts the records of a run to a simulated run (trials/trial.h) that has the same events and the same
// plans with their speeds. Other policies can then be simulated with these events.
//
//   steps, epochs (metrics.jsonl) ──┐
//                                   ├──> unchanged segments, with the step time of every known plan
//   evidence, gains (decisions.jsonl)┘
//
// The step time of a plan in a segment is the measured time if there is one. Otherwise it is the prediction
// of a decision that considered the plan in this segment. Otherwise it is the time from the previous segment,
// unless a rank was lost or joined in between. A plan without a known step time cannot be chosen. No side
// effects.
#pragma once

#include <string>
#include <vector>

#include "observe/decisions.h"
#include "observe/metrics.h"
#include "trials/trial.h"

namespace optimus {

struct RecordedTrial {
  TrialCase trial;
  std::vector<std::string> plans;  // indexed by mode
  double seconds = 0;              // of the run, including pauses
  std::int64_t num_steps = 0;      // steps completed in that time
  int num_switches = 0;            // automatic plan changes
};

// `name` maps the hash of a plan to its short name. `steps` must be non-empty and sorted.
RecordedTrial recorded_trial(const std::vector<StepMetrics>& steps, const std::vector<Decision>& decisions,
                             const std::function<std::string(const std::string& hash)>& name);

}  // namespace optimus
