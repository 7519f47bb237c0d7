// Which of a step's samples goes where. Attention takes time with the square of a document's length, so replicas that have as many
// sequences may have very different work, and the step waits for the unluckiest. What is learned is a sum over the batch: who adds what
// to it is free.
//
//   in order   9 9 1 1 | 1 1 1 1   20 and 4        two replicas of four sequences each
//   by cost    9 1 1 1 | 9 1 1 1   12 and 12
//
// Pure, and the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// in_order: the first samples to the first micro-batch of the first pipeline, and so on.
enum class Dealing { in_order, by_cost };

// sample[place]: places are counted through the micro-batches of all pipelines, as samples are dealt in order. costs: of each sample, what
// it takes beyond what all take. Replicas get as many samples as the plan says, and costs in proportion to these, as far as that goes; then
// so do the micro-batches of each. In order where each micro-batch is an update of its own (asynchronous schedules), and where nobody would
// wait for anybody.
std::vector<std::int64_t> deal_by_cost(const Plan& plan, const std::vector<double>& costs);

}  // namespace optimus
