// The plan file: readable, stable, versioned JSON (docs/use/plan-file.md). Fields with default values are
// omitted, devices and blocks are written as ranges ("0..7"), and equal micro-batches are written as a count,
// so a plan for 100,000 devices is about a page long.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "plan/plan.h"

namespace optimus {

inline constexpr int kPlanVersion = 2;  // the newest version; all earlier versions can be read

// Writes the oldest version that can represent the plan.
OrderedJson to_json(const Plan& plan);
std::string plan_text(const Plan& plan);  // content of the file

// These functions throw a UserError if the text is not a plan file or the plan is not valid.
Plan parse_plan(std::string_view text, const std::string& source);
Plan read_plan(const Path& path);

// A hash of the plan as 16 hexadecimal digits. It is computed from the plan's JSON in version 1 of the
// format, without the model's name, so equal plans have equal hashes regardless of the versions of their
// files.
std::string plan_hash(const Plan& plan);

}  // namespace optimus
