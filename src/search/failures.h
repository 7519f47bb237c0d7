// What failing devices cost a plan, so that a second copy of sharded state (Plan::buddy) can be weighed against its price.
//
// So many devices fail every mtbf / devices. Where every piece of the state is on another device too, the others go on after a
// moment; else the run goes back to its last checkpoint, which is half as old, on average, as checkpoints are apart, and starts again:
//
//   seconds for a useful one = 1 + devices / mtbf x (recovery, or checkpoint_every / 2 + restart)
//
// First order: failures while another is being dealt with are left out. Only mtbf is the user's; the others are assumptions where nobody
// says better.
#pragma once

#include "cluster/device_map.h"
#include "plan/plan.h"
#include "search/candidate.h"

namespace optimus {

// How much longer a run takes.
double stretch_of(const Failures& failures, int num_devices, bool keeps_state);

// Whether no single device takes state with it. Of a candidate without ZeRO stage, as the grid begins with: whether that can be so.
bool keeps_state(const Plan& plan);
bool keeps_state(const Candidate& candidate);

// rate_of, times what failures add to it: what a second of a step counts.
double weight_of(const Demand& demand, const DeviceMap& map, const Plan& plan);
double weight_of(const Demand& demand, const DeviceMap& map, const Candidate& candidate);

// The distance between a shard and its copy that brings them to different nodes, where there are several; at least 1. Shards are
// `stride` devices apart, `per_node` devices make a node.
int buddy_distance(int num_shards, int stride, int per_node);

}  // namespace optimus
