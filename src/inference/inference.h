// A trained model that is loaded on a device for evaluation or generation, without training state.
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
// Throws ReportedError, for example if the weights do not fit into the device's memory.
Inference open_for_inference(const std::string& model, const ComputeOptions& options, EventSink& events);

// Returns a single-device plan for forward passes that saves as few activations as possible.
Plan inference_plan(const ModelSpec& model, Precision precision, std::int64_t sequences,
                    std::int64_t sequence_length);
// Throws UserError if the activations of the plan plus `extra_bytes` do not fit into the device's free
// memory. `work_description` is part of the message, for example "8 windows of 1024 tokens".
void refuse_too_large_pass(const Plan& plan, const ModelSpec& model, at::Device device, Bytes extra_bytes,
                           const std::string& work_description);

}  // namespace optimus
