// The first response to a lost device (as in ReCycle): other devices with the same layers take over its
// work. No state moves, so the only cost is a lower speed while a better plan is prepared.
#pragma once

#include <optional>

#include "plan/plan.h"

namespace optimus {

// The plan without `device`. The other replicas of its stage share its work. If there are no other replicas,
// the other pipelines share the micro-batches of its pipeline, in proportion to their numbers of sequences.
// Devices keep their indices, and the batch size does not change. Returns nullopt if no other device has the
// state of `device`, or if shards of the state are lost with it.
std::optional<Plan> without_device(const Plan& plan, int device);

// Durations that determine the cost of the two responses to a lost device: replan at once, or run a takeover
// plan while a new plan is prepared.
struct ResponseTimes {
  double takeover_step = 1, replanned_step = 1;  // seconds per step
  double pause = 0;         // until steps continue: agreement on the new membership, new connections
  double move = 0;          // seconds to transfer state for the new plan
  double prepare = 0;       // seconds to prepare the new plan while steps continue
  double switch_pause = 0;  // pause of the later switch to the new plan
};
// Seconds of training that each response loses, measured at the speed of the new plan.
double seconds_lost_by_replanning(const ResponseTimes& times);
double seconds_lost_by_takeover(const ResponseTimes& times);

}  // namespace optimus
