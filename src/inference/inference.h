// A trained model on a device, ready to be evaluated or to generate: weights and no state of training.
#pragma once

#include "base/event.h"
#include "checkpoint/open_model.h"
#include "engine/parameters.h"
#include "settings/inference_options.h"

namespace optimus {

struct Inference {
  OpenedModel opened;
  Precision precision;
  at::Device device;
  Parameters parameters;
};
// Throws UserError; also when the weights do not fit the device's memory.
Inference open_for_inference(const std::string& model, const ComputeOptions& options, EventSink& events);

// A plan whose forward is the model's and which keeps as little as it can.
Plan inference_plan(const ModelSpec& model, Precision precision, std::int64_t sequences,
                    std::int64_t sequence_length);
// Throws UserError when activations of the plan and `more` do not fit beside what the device holds by now. `what` is computed:
// "8 windows of 1024 tokens".
void refuse_too_large_pass(const Plan& plan, const ModelSpec& model, at::Device device, Bytes more,
                           const std::string& what);

}  // namespace optimus
