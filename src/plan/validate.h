// What makes a plan valid. Each rule has one sentence that says what is wrong and what would be right.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.h"

namespace optimus {

// The first rule that the plan breaks, as a sentence; nothing when it is valid. The plan alone: sizes,
// blocks, devices, strategies, schedule. O(devices + micro-batches).
std::optional<std::string> problem_in(const Plan& plan);
// The same, and that it fits the model: blocks, heads, positions.
std::optional<std::string> problem_in(const Plan& plan, const ModelSpec& model);

// Throws UserError with `source` before the sentence.
void validate(const Plan& plan, const std::string& source);
void validate(const Plan& plan, const ModelSpec& model, const std::string& source);

}  // namespace optimus
