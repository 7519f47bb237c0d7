// How many devices: to hold a model, or to finish a run in time.
#pragma once

#include "search/search.h"

namespace optimus {

// The machines with another number of devices: the first group of nodes, larger or smaller, nothing missing.
Cluster with_devices(const Cluster& cluster, int num_devices);

// Whether anything meets the demand.
bool is_possible(const Demand& demand, const Ground& ground);

// The fewest devices, in whole nodes and beyond those there are, on which the demand can be met; 0 when more do not help.
int devices_to_fit(const Demand& demand);

struct Sizing {
  int num_devices = 0;  // 0: no number of devices is quick enough
  double seconds = 0;   // of a step on them
  int most = 0;         // that were tried
  double least_seconds = 0;
};
// The fewest devices, in whole nodes, whose best plan takes at most `step_seconds` a step.
Sizing devices_to_finish(const Demand& demand, double step_seconds);

}  // namespace optimus
