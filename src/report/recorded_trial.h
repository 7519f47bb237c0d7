// A run's own records as a trial (trials/trial.h): what happened to it and when, and what its plans took, so that other policies can be
// asked what they would have done.
//
//   steps, epochs (metrics.jsonl) ──┐
//                                   ├──> stretches in which nothing changed, and for each what every known plan took there
//   evidence, gains (decisions.jsonl)┘
//
// A plan takes what it was measured to take in that stretch; else what was predicted when it was weighed there; else what it took in the
// stretch before, as long as nobody was lost or came. A plan of which nothing was known then cannot be chosen. Pure.
#pragma once

#include <string>
#include <vector>

#include "observe/decisions.h"
#include "observe/metrics.h"
#include "trials/trial.h"

namespace optimus {

struct RecordedTrial {
  TrialCase trial;
  std::vector<std::string> plans;  // [mode]
  double seconds = 0;              // of the run, pauses too
  std::int64_t num_steps = 0;      // that it did in them
  int num_switches = 0;            // of its own will
};

// name: of a plan's hash, in short words. steps must be some, in order.
RecordedTrial recorded_trial(const std::vector<StepMetrics>& steps, const std::vector<Decision>& decisions,
                             const std::function<std::string(const std::string& hash)>& name);

}  // namespace optimus
