// Checks whether a plan is valid. The message for each rule is one sentence that names the violation and the
// valid values.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.h"

namespace optimus {

// Returns the first violated rule as a sentence, or nullopt if the plan is valid. Checks only the plan
// itself: sizes, blocks, devices, strategies, schedule. O(devices + micro-batches).
std::optional<std::string> find_problem(const Plan& plan);
// Also checks that the plan fits the model: blocks, heads, positions.
std::optional<std::string> find_problem(const Plan& plan, const ModelSpec& model);

// These functions throw a UserError whose message starts with `source`.
void validate(const Plan& plan, const std::string& source);
void validate(const Plan& plan, const ModelSpec& model, const std::string& source);

}  // namespace optimus
