// What one run says of the cost model, for the history (cost/history.h): measured over predicted seconds by kind of work.
//
// Where instructions were timed (several ranks on processors), layers, embedding, head, updates, the host and links are told apart. Elsewhere
// only steps were: their seconds count as those of layers, the more doubtful the more of a step is something else. What came and went
// in the run, medians pass over; a condition that lasted is in the figure, and the next runs outweigh it. Pure.
#pragma once

#include <vector>

#include "adapt/observation.h"
#include "cluster/device_map.h"
#include "cost/history.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// Of the last plan of a run. The cluster: as the cost model knows these machines, device i is rank i.
struct RunSeen {
  const Plan& plan;
  const ModelSpec& model;
  const Cluster& cluster;
  std::string device;                     // type
  std::vector<Observation> observations;  // with this plan
  std::vector<double> step_seconds;       // the same, without the first few
};

// Fewer steps, or a run of less than half a minute, say nothing.
inline constexpr int kLeastSteps = 20, kLeastObservations = 4;
inline constexpr double kLeastRunSeconds = 30;
// Empty: it says nothing. Models of modules say nothing, because the cost model does not know them.
std::vector<Evidence> evidence_of(const RunSeen& seen);

// What the planner is told of it.
PastStrategy strategy_of(const Plan& plan);

}  // namespace optimus
