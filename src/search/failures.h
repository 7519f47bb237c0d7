// The cost of device failures under a plan. The planner uses it to decide whether a second copy of sharded
// state (Plan::copy_distance) is worth its cost.
//
// On average, one of the devices fails every mtbf / devices seconds. If all state is also on another device,
// the remaining devices continue after a short recovery. Otherwise the run restarts from its last checkpoint,
// which is half a checkpoint interval old on average:
//
//   seconds per useful second = 1 + devices / mtbf x (recovery, or checkpoint_every / 2 + restart)
//
// This is a first-order estimate that ignores failures during a recovery. The user sets only mtbf. The other
// values are assumptions.
#pragma once

#include "cluster/device_map.h"
#include "plan/plan.h"
#include "search/candidate.h"

namespace optimus {

// The factor, at least 1, by which failures lengthen a run.
double failure_slowdown(const Failures& failures, int num_devices, bool survives_device_loss);

// Whether any single device can be lost without losing state. For a candidate without a ZeRO stage, as at the
// start of the grid search, whether some ZeRO stage makes this possible.
bool survives_device_loss(const Plan& plan);
bool survives_device_loss(const Candidate& candidate);

// The factor that converts seconds per step to the objective: cost_rate() times failure_slowdown().
double objective_weight(const Demand& demand, const DeviceMap& map, const Plan& plan);
double objective_weight(const Demand& demand, const DeviceMap& map, const Candidate& candidate);

}  // namespace optimus
