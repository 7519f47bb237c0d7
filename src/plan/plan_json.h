// The plan file: readable, stable, versioned JSON (docs/use/plan-file.md). Fields with default values are
// omitted, devices and blocks are written as ranges ("0..7"), and equal micro-batches are written as a
// count, so the plan of 100,000 devices is about a page long.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "plan/plan.h"

namespace optimus {

inline constexpr int kPlanVersion = 2;  // the newest; all versions are read

// Writes the oldest version that can represent the plan.
OrderedJson to_json(const Plan& plan);
std::string plan_text(const Plan& plan);  // content of the file

// These throw UserError if the text is not a plan file or the plan is not valid.
Plan parse_plan(std::string_view text, const std::string& source);
Plan read_plan(const Path& path);

// A hash of the file's content in version 1, without the model's name, in 16 hexadecimal digits. Equal
// plans have equal hashes, whatever the version of their files.
std::string plan_hash(const Plan& plan);

}  // namespace optimus
