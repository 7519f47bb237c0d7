// Evaluates a plan with the simulator: computes the step time, and the memory of the process with the least
// headroom.
#pragma once

#include "search/bound.h"
#include "simulate/simulate.h"

namespace optimus {

struct PeakMemory {
  // Memory of the process with the least headroom or the largest excess, and its limit.
  double bytes = 0, limit = 0;
  // Host memory of the node whose offloaded state has the least headroom. 0 without offloading.
  double host_bytes = 0, host_limit = 0;
  bool fits_host() const { return host_bytes <= host_limit; }
  bool fits() const { return bytes <= limit && fits_host(); }
};
// Considers all stages of all pipelines. Among stages with equal contents, only the stage with the most
// micro-batches in flight is evaluated.
PeakMemory peak_memory_of(const Demand& demand, const ClusterView& cluster_view, const Plan& plan);

// Returns the simulated seconds per step. The plan must be valid.
double seconds_of(const Demand& demand, const ClusterView& cluster_view, const Plan& plan);
// Returns the full prediction: breakdown of time, slots (if `stores_slots`), and memory of all stages.
StepPrediction predict(const Demand& demand, const ClusterView& cluster_view, const Plan& plan,
                       bool stores_slots = true);

}  // namespace optimus
