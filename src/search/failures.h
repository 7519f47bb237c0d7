// The cost of device failures under a plan, by which the planner decides whether a second copy of sharded
// state (Plan::copy_distance) is worth its price.
//
// Some device fails every mtbf / devices seconds. If all state is also on another device, the remaining
// devices continue after a short recovery. Otherwise the run restarts from its last checkpoint, which is
// half a checkpoint interval old on average:
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

// The factor, at least 1, by which failures lengthen a run.
double failure_slowdown(const Failures& failures, int num_devices, bool survives_device_loss);

// Whether every device can be lost without losing state. For a candidate without a ZeRO stage, as at the
// start of the grid search: whether some ZeRO stage makes this possible.
bool survives_device_loss(const Plan& plan);
bool survives_device_loss(const Candidate& candidate);

// The factor from seconds per step to the objective: cost_rate() times failure_slowdown().
double objective_weight(const Demand& demand, const DeviceMap& map, const Plan& plan);
double objective_weight(const Demand& demand, const DeviceMap& map, const Candidate& candidate);

}  // namespace optimus
