// The cost of device failures for a plan, used to weigh a second copy of sharded state (Plan::copy_distance)
// against its price.
//
// A device fails every mtbf / devices seconds. If every part of the state is also on another device, the
// remaining devices continue after a short recovery. Otherwise the run restarts from its last checkpoint,
// which is half a checkpoint interval old on average:
//
//   seconds per useful second = 1 + devices / mtbf x (recovery, or checkpoint_every / 2 + restart)
//
// This is a first-order estimate: failures during a recovery are ignored. Only mtbf is set by the user; the
// other values are assumptions.
#pragma once

#include "cluster/device_map.h"
#include "plan/plan.h"
#include "search/candidate.h"

namespace optimus {

// The factor by which failures lengthen a run.
double failure_slowdown(const Failures& failures, int num_devices, bool survives_device_loss);

// Whether no single device stores state that no other device has. For a candidate without a ZeRO stage, as at
// the start of the grid search: whether this is possible.
bool survives_device_loss(const Plan& plan);
bool survives_device_loss(const Candidate& candidate);

// The weight of one second of a step in the objective: cost_rate times the failure factor.
double objective_weight(const Demand& demand, const DeviceMap& map, const Plan& plan);
double objective_weight(const Demand& demand, const DeviceMap& map, const Candidate& candidate);

}  // namespace optimus
