// The plan of a training on several devices that nobody wrote: the planner's best among those that the engine can run.
#pragma once

#include "plan/plan.h"
#include "run/options.h"
#include "run/settings.h"

namespace optimus {

// Batch, sequence length and precision are resolved. All devices are used. Throws UserError when nothing fits.
Plan choose_plan(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
                 bool is_recompute_given);

}  // namespace optimus
