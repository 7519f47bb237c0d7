// ImportedPlan: a plan that was read from the launch of another trainer (plan/import.h). Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/exported_plan.h"
#include "plan/plan.h"

namespace optimus {

// Settings that the user specifies in addition to the file. They take precedence over the file.
struct ImportRequest {
  std::optional<ModelSpec> model{};  // required for DeepSpeed, whose file does not describe the model
  std::optional<int> devices{};      // required if the file does not specify the number of processes
  std::optional<std::int64_t> batch{}, sequence_length{}, vocab{};
};

struct ImportedPlan {
  Trainer trainer = Trainer::megatron;
  ModelSpec model;
  Plan plan;                                              // valid for the model
  std::vector<std::string> understood, ignored, unknown;  // arguments such as "--num-layers 32"
  std::vector<std::string> notes;                         // how the plan differs from the file
};

}  // namespace optimus
