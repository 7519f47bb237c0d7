// Converts the records of a run to a trial (trials/trial.h): the events of the run with their times, and the
// speeds of its plans. Other policies can then be simulated on the same events.
//
//   steps, epochs (metrics.jsonl) ──┐
//                                   ├──> unchanged segments, with the step time of every known plan
//   evidence, gains (decisions.jsonl)┘
//
// The step time of a plan in a segment is the measured one if there is one; else the prediction of a
// decision that considered the plan in this segment; else that of the previous segment, unless a rank was
// lost or joined in between. A plan without any known time cannot be chosen. Pure.
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

// `name` maps a plan's hash to its short name. `steps` must not be empty and must be in order.
RecordedTrial recorded_trial(const std::vector<StepMetrics>& steps, const std::vector<Decision>& decisions,
                             const std::function<std::string(const std::string& hash)>& name);

}  // namespace optimus
