// A trained model on several devices for forwards only: ranks are threads of this process, each with its part of the weights.
#pragma once

#include <functional>

#include "checkpoint/open_model.h"
#include "engine/engine.h"
#include "inference/evaluate.h"
#include "settings/inference_options.h"

namespace optimus {

// The work of each rank; what rank 0's gives is returned. Throws what a rank throws: of several, what failed by itself before what
// only missed others. Throws UserError when the devices have too little memory.
LossSum on_ranks(const Plan& plan, const OpenedModel& model, const ComputeOptions& options,
                 const std::function<LossSum(Engine& engine, int rank)>& work);

}  // namespace optimus
