// Derives the errors of the cost model from a run, for the history of past runs (cost/history.h). An error is
// the ratio of measured to predicted seconds for one kind of work.
//
// If instructions were timed (several ranks on CPUs), there are separate ratios for layers, embedding, head,
// optimizer updates, the host and links. Otherwise only step times are known. They are attributed to the
// layers, with an uncertainty that grows with the fraction of the step that is not spent in layers. Medians
// suppress short disturbances, but a lasting condition distorts the result until later runs outweigh it.
// No side effects.
#pragma once

#include <vector>

#include "adapt/observation.h"
#include "cluster/device_map.h"
#include "cost/history.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// Measurements of the last plan of a run. `cluster` describes the machines without calibration, and device i
// is rank i.
struct RunMeasurements {
  const Plan& plan;
  const ModelSpec& model;
  const Cluster& cluster;
  std::string device;                     // device type
  std::vector<Observation> observations;  // with this plan
  std::vector<double> step_seconds;       // with this plan, without the first few steps
};

// Shorter runs are not used as evidence.
inline constexpr int kMinSteps = 20, kMinObservations = 4;
inline constexpr double kMinRunSeconds = 30;
// Returns an empty vector if the run is too short, or if it trains a custom model, which the cost model does
// not support.
std::vector<Evidence> evidence_of(const RunMeasurements& measurements);

// The plan as the history records it.
PastStrategy strategy_of(const Plan& plan);

}  // namespace optimus
