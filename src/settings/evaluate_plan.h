// The plan of an evaluation on several devices: one that was written for training, or a grid of tp, pp, cp and dp. No planner: a forward keeps
// little, and any plan gives the same figures. Pure.
#pragma once

#include "plan/plan.h"
#include "settings/inference_options.h"

namespace optimus {

// How many devices are wanted; 1 when nothing was said of any. Throws UsageError when what was said does not go together.
int num_devices(const EvalLayout& layout);

struct EvalWork {
  std::int64_t windows = 1, sequence_length = 1, tokens_at_once = 2048;
  std::optional<std::int64_t> batch{};  // windows at a time, over all devices
  std::optional<Precision> precision{};
};
// For more than one device, or a plan from a file. Throws UserError.
Plan evaluation_plan(const EvalLayout& layout, const ModelSpec& model, const EvalWork& work);

}  // namespace optimus
