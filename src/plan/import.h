// Another trainer's launch as a plan of ours: a Megatron-LM command line (a shell script, or a text file with its arguments), or a
// DeepSpeed configuration. The way back of plan/export.h: of a uniform plan, import(export(plan)) is the plan.
//
// Every argument ends in one of three lists: understood, without meaning for the plan (logging, data, optimizer's numbers), unknown.
// Files come from outside: hostile ones give one line, within bounded memory.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "plan/export.h"
#include "plan/plan.h"

namespace optimus {

// What the user says beside the file; it goes before what the file says.
struct ImportRequest {
  std::optional<ModelSpec> model{};  // needed for DeepSpeed, whose file does not know the model
  std::optional<int> devices{};      // needed where the file does not say how many processes it starts
  std::optional<std::int64_t> batch{}, sequence_length{}, vocab{};
};

struct ImportedPlan {
  Trainer trainer = Trainer::megatron;
  ModelSpec model;
  Plan plan;                                              // valid for the model
  std::vector<std::string> understood, ignored, unknown;  // "--num-layers 32"
  std::vector<std::string> notes;                         // what the plan says otherwise than the file
};

// `source` is the file's name, for messages. Throws UserError.
ImportedPlan import_plan(std::string_view text, const std::string& source, const ImportRequest& request);
ImportedPlan read_import(const Path& path, const ImportRequest& request);

}  // namespace optimus
