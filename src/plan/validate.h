// The rules of a valid plan. Each rule has one sentence that states what is wrong and what would be right.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.h"

namespace optimus {

// The first violated rule as a sentence; nullopt if the plan is valid. Checks only the plan itself: sizes,
// blocks, devices, strategies, schedule. O(devices + micro-batches).
std::optional<std::string> find_problem(const Plan& plan);
// Also checks that the plan fits the model: blocks, heads, positions.
std::optional<std::string> find_problem(const Plan& plan, const ModelSpec& model);

// These throw a UserError that begins with `source`.
void validate(const Plan& plan, const std::string& source);
void validate(const Plan& plan, const ModelSpec& model, const std::string& source);

}  // namespace optimus
