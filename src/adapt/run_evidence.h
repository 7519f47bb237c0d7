// Errors of the cost model that a run shows, for the history (cost/history.h): measured over predicted
// seconds by kind of work.
//
// If instructions were timed (several ranks on CPUs), layers, embedding, head, optimizer updates, the host
// and links are distinguished. Otherwise only steps are known: their time counts as time of layers, with a
// doubt that grows with the rest of the step. Medians ignore short disturbances. A condition that lasted is
// part of the result; later runs outweigh it. Pure.
#pragma once

#include <vector>

#include "adapt/observation.h"
#include "cluster/device_map.h"
#include "cost/history.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// Measurements with the last plan of a run. cluster: the machines as the cost model knows them; device i is
// rank i.
struct RunMeasurements {
  const Plan& plan;
  const ModelSpec& model;
  const Cluster& cluster;
  std::string device;                     // device type
  std::vector<Observation> observations;  // with this plan
  std::vector<double> step_seconds;       // with this plan, without the first few
};

// Shorter runs are no evidence.
inline constexpr int kLeastSteps = 20, kLeastObservations = 4;
inline constexpr double kLeastRunSeconds = 30;
// Empty if the run is no evidence. Custom models are none, because the cost model does not know them.
std::vector<Evidence> evidence_of(const RunMeasurements& seen);

// The plan as the history records it.
PastStrategy strategy_of(const Plan& plan);

}  // namespace optimus
