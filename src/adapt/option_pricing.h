// Determines the plans that the run could use now and the expected step time of each. Pure functions; any
// thread.
#pragma once

#include <vector>

#include "adapt/adaptation_context.h"
#include "adapt/question.h"

namespace optimus {

// Returns the current plan, followed by those of the planner's plans that the run can use, with predicted
// step times. Infeasible if no plan fits in memory.
Feasible<std::vector<PlannedOption>> planned_options(const Question& question,
                                                     const AdaptationContext& context,
                                                     const Cluster& cluster);

// Returns the question's prediction memory with the current plan's measured step time added.
// `current_option` is the current plan with its predicted step time.
PredictionMemory learned_from(const Question& question, const PlanOption& current_option,
                              const Cluster& cluster);

// Multiplies each predicted step time by the ratio of measured to predicted time of plans of the same kind.
// If a plan has already run under the same conditions, its measured step time is used instead.
std::vector<PlannedOption> priced(std::vector<PlannedOption> options, const Question& question,
                                  const PredictionMemory& memory, const AdaptationContext& context,
                                  const Cluster& cluster);

}  // namespace optimus
