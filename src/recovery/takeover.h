// The first answer to a lost device (as ReCycle): who holds the same layers takes over what it computed. Nothing moves, so it costs
// nothing but speed, while a better plan is prepared.
#pragma once

#include <optional>

#include "plan/plan.h"

namespace optimus {

// The plan without the device: the other replicas of its stage share its work; where there are none, the other pipelines share its
// pipeline's micro-batches, whole ones, by how many sequences they had. Devices keep their numbers; the batch stays whole.
// Nothing where that does not work: the device's state is nowhere else, or shards of it are lost with the device.
std::optional<Plan> without_device(const Plan& plan, int device);

// Both ways of going on after a loss: at once with what has to move, or through a takeover while that is prepared.
struct ResponseTimes {
  double takeover_step = 1, replanned_step = 1;  // seconds of a step
  double pause = 0;                              // to go on at all: agreeing, connecting
  double move = 0;                               // of state, for the new plan
  double prepare = 0;                            // to have the new plan ready while steps go on
  double switch_pause = 0;                       // then
};
// Seconds of training at the new plan's speed that each way loses.
double loss_of_replanning(const ResponseTimes& times);
double loss_of_takeover(const ResponseTimes& times);

}  // namespace optimus
