// Builds the plan for an evaluation on several devices, from a training plan in a file or from a grid of tp,
// pp, cp and dp. The planner is not needed, because a forward pass needs little memory for activations and
// all plans give the same result. No side effects.
#pragma once

#include "plan/plan.h"
#include "settings/inference_options.h"

namespace optimus {

// The requested number of devices, by default 1. Throws UsageError if flags are inconsistent.
int num_devices(const EvalLayout& layout);

struct EvalWork {
  std::int64_t windows = 1, sequence_length = 1, tokens_per_pass = 2048;
  std::optional<std::int64_t> batch{};  // windows per forward pass, over all devices
  std::optional<Precision> precision{};
};
// Used for more than one device, or for a plan from a file. Throws UserError if the plan is invalid.
Plan evaluation_plan(const EvalLayout& layout, const ModelSpec& model, const EvalWork& work);

}  // namespace optimus
