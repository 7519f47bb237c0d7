// Evaluates a plan with the simulator: the step time, and the memory of the process with the least headroom.
#pragma once

#include "search/bound.h"
#include "simulate/simulate.h"

namespace optimus {

struct PeakMemory {
  double bytes = 0,
         limit = 0;  // of the process with the least headroom, or with the largest excess
  double host_bytes = 0, host_limit = 0;  // of the node with the most offloaded state, if any
  bool fits_host() const { return host_bytes <= host_limit; }
  bool fits() const { return bytes <= limit && fits_host(); }
};
// Considers all stages of all pipelines; of stages with equal contents, only the one with the most
// micro-batches in flight.
PeakMemory peak_memory_of(const Demand& demand, const ClusterView& cluster_view, const Plan& plan);

// The plan must be valid.
double seconds_of(const Demand& demand, const ClusterView& cluster_view, const Plan& plan);
// The full prediction: time split, slots, and memory of all stages.
StepPrediction predict(const Demand& demand, const ClusterView& cluster_view, const Plan& plan,
                       bool stores_slots = true);

}  // namespace optimus
