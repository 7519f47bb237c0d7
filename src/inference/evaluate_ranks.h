// Runs forward passes of a trained model on several devices. The ranks are threads of this process, and each
// holds its shard of the weights.
#pragma once

#include <functional>

#include "checkpoint/open_model.h"
#include "engine/engine.h"
#include "inference/loss_sum.h"
#include "settings/inference_options.h"

namespace optimus {

// Runs `evaluate` on every rank and returns rank 0's result. If ranks fail, rethrows the exception of the
// rank that caused the failure rather than that of a rank that only lost contact with it. Throws UserError if
// the devices have too little memory.
LossSum on_ranks(const Plan& plan, const OpenedModel& model, const ComputeOptions& options,
                 const std::function<LossSum(Engine& engine, int rank)>& evaluate);

}  // namespace optimus
