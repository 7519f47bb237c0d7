// Derives the errors of the cost model from a run, for the history (cost/history.h): the ratio of measured to
// predicted seconds by kind of work.
//
// If instructions were timed (several ranks on CPUs), layers, embedding, head, optimizer updates, the host
// and links are distinguished. Otherwise only step times are known: they are attributed to the layers, with
// an uncertainty that grows with the share of everything else in the step. Medians ignore short
// disturbances. A lasting condition distorts the result, until later runs outweigh it. Pure.
#pragma once

#include <vector>

#include "adapt/observation.h"
#include "cluster/device_map.h"
#include "cost/history.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// Measurements with the last plan of a run. `cluster` describes the machines as the cost model knows them;
// device i is rank i.
struct RunMeasurements {
  const Plan& plan;
  const ModelSpec& model;
  const Cluster& cluster;
  std::string device;                     // device type
  std::vector<Observation> observations;  // with this plan
  std::vector<double> step_seconds;       // with this plan, without the first few steps
};

// Shorter runs do not count as evidence.
inline constexpr int kMinSteps = 20, kMinObservations = 4;
inline constexpr double kMinRunSeconds = 30;
// Empty if the run does not count as evidence: it is too short, or it trains a custom model, which the cost
// model does not know.
std::vector<Evidence> evidence_of(const RunMeasurements& measurements);

// The plan as the history records it.
PastStrategy strategy_of(const Plan& plan);

}  // namespace optimus
