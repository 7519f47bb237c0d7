// Converts the launch of another trainer to an Optimus plan: a Megatron-LM command line (a shell script, or a
// text file with its arguments) or a DeepSpeed configuration. This is the inverse of plan/export.h: for a
// uniform plan, import(export(plan)) equals the plan.
//
// Every argument is recorded in one of three lists: understood, without effect on the plan (logging, data,
// optimizer settings), or unknown. The files are untrusted input: a malicious file results in a one-line
// error, and memory use is bounded.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"
#include "plan/imported_plan.h"

namespace optimus {

// `source` is the file name to show in messages. Throws UserError.
ImportedPlan import_plan(std::string_view text, const std::string& source, const ImportRequest& request);
ImportedPlan read_import(const Path& path, const ImportRequest& request);

}  // namespace optimus
