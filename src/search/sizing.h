// Determines how many devices are needed for a model to fit, or for a run to finish in a given time.
#pragma once

#include "search/cluster_view.h"
#include "search/demand.h"

namespace optimus {

// Returns the cluster resized to `num_devices` devices. It has only the first node group, and no devices are
// missing.
Cluster with_devices(const Cluster& cluster, int num_devices);

// Whether any plan meets the demand.
bool is_possible(const Demand& demand, const ClusterView& cluster_view);

// The smallest number of devices that meets the demand, in whole nodes and larger than the present cluster. 0
// if more devices do not help.
int devices_to_fit(const Demand& demand);

struct Sizing {
  int num_devices = 0;          // 0 if no number of devices is fast enough
  double seconds = 0;           // seconds per step on these devices
  int fastest_num_devices = 0;  // the number of devices with the shortest step among those tried
  double min_seconds = 0;
};
// The smallest number of devices, in whole nodes, whose best plan takes at most `step_seconds` per step.
Sizing devices_to_finish(const Demand& demand, double step_seconds);

}  // namespace optimus
