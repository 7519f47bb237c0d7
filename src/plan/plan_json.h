// The plan's file: readable, stable, versioned JSON (docs/plan.md). What is at its default is left out;
// devices and blocks are ranges ("0..7"), equal micro-batches are counted, so the plan of 100,000 devices is
// a page long.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "plan/plan.h"

namespace optimus {

inline constexpr int kPlanVersion = 1;

OrderedJson to_json(const Plan& plan);
std::string plan_text(const Plan& plan);  // the file's content

// Throw UserError for what is no plan file, and for a plan that is not valid.
Plan parse_plan(std::string_view text, const std::string& source);
Plan read_plan(const Path& path);

// 16 hexadecimal digits over the file's content without the model's name: equal plans, equal hashes.
std::string plan_hash(const Plan& plan);

// "0..7,12" <-> 0 1 2 3 4 5 6 7 12
std::string ranges_text(const std::vector<int>& numbers);
std::vector<int> parse_ranges(const std::string& text, const std::string& where);

}  // namespace optimus
