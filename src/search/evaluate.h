// What a plan really takes, by the simulator: seconds of a step, and bytes of its fullest process.
#pragma once

#include "search/bound.h"
#include "simulate/simulate.h"

namespace optimus {

struct Fill {
  double bytes = 0,
         limit = 0;  // of the process that comes nearest to its device's memory, or exceeds it most
  double host_bytes = 0, host_limit = 0;  // of the node that holds most offloaded state, where one does
  bool fits_host() const { return host_bytes <= host_limit; }
  bool fits() const { return bytes <= limit && fits_host(); }
};
// All stages of all pipelines; of those that hold the same, the one with most micro-batches under way.
Fill fill_of(const Demand& demand, const Ground& ground, const Plan& plan);

// The plan must be valid.
double seconds_of(const Demand& demand, const Ground& ground, const Plan& plan);
// With where the time goes, slots, and memory of all stages.
StepPrediction predict(const Demand& demand, const Ground& ground, const Plan& plan);

}  // namespace optimus
