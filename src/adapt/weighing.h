// Weighing: compares plans and decides whether to switch. The planner finds the options, measurements correct
// their predicted step times, and the policy chooses one. Pure function; any thread. Takes seconds on large
// clusters.
#pragma once

#include "adapt/adaptation_context.h"
#include "adapt/question.h"

namespace optimus {

// `cluster` must be built from context.machines. Reads only constants of the context and calls only callbacks
// that are marked "any thread".
Answer weigh(const Question& question, const AdaptationContext& context, const Cluster& cluster);

}  // namespace optimus
