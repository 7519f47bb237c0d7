// Assigns the samples of a step to micro-batches. Attention time grows with the square of a document's
// length, so replicas with the same number of sequences can have very different amounts of work, and the step
// waits for the slowest replica. The gradient is a sum over the batch, so any replica may compute any sample.
//
//   in order   9 9 1 1 | 1 1 1 1   20 and 4        two replicas of four sequences each
//   by cost    9 1 1 1 | 9 1 1 1   12 and 12
//
// The functions are pure, so the result is the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// `in_order` assigns the first samples to the first micro-batch of the first pipeline, and so on.
enum class SampleOrder { in_order, by_cost };

// Returns sample[place], the sample that each place of the batch receives. Places are numbered through the
// micro-batches of all pipelines in the default order. costs[sample] is the cost of the sample beyond the
// cost common to all samples. Each replica receives as many samples as the plan specifies, and the total
// costs of the replicas are as close to proportional to these numbers as possible. The same holds for the
// micro-batches of each replica. The order is unchanged if each micro-batch has a separate update
// (asynchronous schedules) or if no replica would wait for another.
std::vector<std::int64_t> assign_samples_by_cost(const Plan& plan, const std::vector<double>& costs);

}  // namespace optimus
