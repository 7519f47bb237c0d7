// Determines the number of devices that is needed to hold a model, or to finish a run in a given time.
#pragma once

#include "search/cluster_view.h"
#include "search/demand.h"

namespace optimus {

// The cluster resized to `num_devices` devices: only the first group of nodes, no missing devices.
Cluster with_devices(const Cluster& cluster, int num_devices);

// Whether any plan meets the demand.
bool is_possible(const Demand& demand, const ClusterView& cluster_view);

// The smallest number of devices, in whole nodes and larger than the cluster, on which the demand can be met;
// 0 if more devices do not help.
int devices_to_fit(const Demand& demand);

struct Sizing {
  int num_devices = 0;          // 0: no number of devices is fast enough
  double seconds = 0;           // per step on these devices
  int fastest_num_devices = 0;  // the number of devices with the shortest step among those tried
  double least_seconds = 0;
};
// The smallest number of devices, in whole nodes, whose best plan takes at most `step_seconds` per step.
Sizing devices_to_finish(const Demand& demand, double step_seconds);

}  // namespace optimus
