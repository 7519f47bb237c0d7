// Option pricing: the plans that the run could use now, and the step time that is expected of each. Pure
// functions; any thread.
#pragma once

#include <vector>

#include "adapt/adaptation_context.h"
#include "adapt/question.h"

namespace optimus {

// The present plan first, then the planner's answers that the run can use, with predicted step times. Throws
// UserError if no plan fits.
std::vector<PlannedOption> planned_options(const Question& question, const AdaptationContext& context,
                                           const Cluster& cluster);

// What the present plan's measured step time shows about predictions. now: the present plan as predicted.
PredictionMemory learned_from(const Question& question, const PlanOption& present_option,
                              const Cluster& cluster);

// Corrects predicted step times by what plans of their kind took of their predictions, and replaces them by
// what the very same plan took under the same conditions.
std::vector<PlannedOption> priced(std::vector<PlannedOption> options, const Question& question,
                                  const PredictionMemory& memory, const AdaptationContext& context,
                                  const Cluster& cluster);

}  // namespace optimus
