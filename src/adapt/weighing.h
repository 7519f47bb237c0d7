// Weighing: the decision whether to switch to another plan. The planner finds the options, their predicted
// step times are corrected by measurements, and the policy chooses. Pure functions over values; any thread.
// A weighing takes seconds on large clusters.
#pragma once

#include "adapt/adaptation_context.h"
#include "adapt/question.h"

namespace optimus {

// `cluster` must be the cluster of context.machines. Reads only the context's constants and those callbacks
// that any thread may call.
Answer weigh(const Question& question, const AdaptationContext& context, const Cluster& cluster);

}  // namespace optimus
