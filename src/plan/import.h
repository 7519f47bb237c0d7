// Converts the launch of another trainer to an Optimus plan: a Megatron-LM command line (a shell script, or a
// text file with its arguments) or a DeepSpeed configuration. The opposite direction of plan/export.h: for a
// uniform plan, import(export(plan)) equals the plan.
//
// Every argument ends in one of three lists: understood, without effect on the plan (logging, data, optimizer
// settings), or unknown. The files are untrusted input: a malicious file leads to a one-line error within
// bounded memory.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "plan/export.h"
#include "plan/plan.h"

namespace optimus {

// What the user specifies in addition to the file. It takes precedence over the file.
struct ImportRequest {
  std::optional<ModelSpec> model{};  // required for DeepSpeed, whose file does not describe the model
  std::optional<int> devices{};      // required if the file does not specify the number of processes
  std::optional<std::int64_t> batch{}, sequence_length{}, vocab{};
};

struct ImportedPlan {
  Trainer trainer = Trainer::megatron;
  ModelSpec model;
  Plan plan;                                              // valid for the model
  std::vector<std::string> understood, ignored, unknown;  // "--num-layers 32"
  std::vector<std::string> notes;                         // how the plan differs from the file
};

// `source` is the file's name in messages. Throws UserError.
ImportedPlan import_plan(std::string_view text, const std::string& source, const ImportRequest& request);
ImportedPlan read_import(const Path& path, const ImportRequest& request);

}  // namespace optimus
