// Builds the plan of an evaluation on several devices: a training plan from a file, or a grid of tp, pp, cp
// and dp. The planner is not needed, because a forward pass keeps few activations and every plan gives the
// same result. Pure.
#pragma once

#include "plan/plan.h"
#include "settings/inference_options.h"

namespace optimus {

// The number of devices requested; 1 if no flag requests any. Throws UsageError if the flags contradict each
// other.
int num_devices(const EvalLayout& layout);

struct EvalWork {
  std::int64_t windows = 1, sequence_length = 1, tokens_per_pass = 2048;
  std::optional<std::int64_t> batch{};  // windows per forward pass, over all devices
  std::optional<Precision> precision{};
};
// For more than one device, or for a plan from a file. Throws UserError.
Plan evaluation_plan(const EvalLayout& layout, const ModelSpec& model, const EvalWork& work);

}  // namespace optimus
