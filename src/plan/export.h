// A plan for another trainer: the files that make Megatron-LM, DeepSpeed or torchtitan run it, or our own plan file.
//
// Those systems know grids of equal stages (plan/export_grid.h). What they cannot express is mapped to the nearest thing that they
// have, and said in a note; what would train another model, or could not run, is refused with a UserError. Nothing is dropped
// silently. docs/export.md has the tables. Read next: plan/import.h, the way back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "plan/plan.h"

namespace optimus {

enum class Trainer { megatron, deepspeed, torchtitan, optimus };
std::string text(Trainer trainer);  // "megatron"
// Throws UserError naming `what` when the word is unknown.
Trainer parse_trainer(const std::string& word, const std::string& what);

// What a launch needs and a plan does not say. 0 or empty: the script leaves it to a variable or the other trainer's default.
struct ExportSettings {
  int devices_per_node = 8;
  double learning_rate = 3e-4;
  std::int64_t steps = 1000, warmup = 100;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, clip = 1;
  std::int64_t seed = 1234;
  std::string data;       // a prefix of token files, or a data set's name
  std::string tokenizer;  // a Hugging Face folder
};

struct ExportedFile {
  std::string name, text;
  bool is_executable = false;
};

struct ExportedPlan {
  Trainer trainer = Trainer::optimus;
  std::vector<ExportedFile> files;  // flat; plan.json is always among them
  std::vector<std::string> notes;   // one sentence each: what the other trainer does differently
};

// Throws UserError when the plan is not valid for the model, or cannot run there.
ExportedPlan export_plan(const Plan& plan, const ModelSpec& model, Trainer trainer,
                         const ExportSettings& settings = {});

inline constexpr const char* kExportRecord = "optimus-export.json";

// All files and a record of them (optimus-export.json), or nothing. A folder that holds something else than an earlier export is
// refused; an earlier export is replaced. Throws UserError.
void write_export(FileSystem& files, const ExportedPlan& exported, const Path& folder);

}  // namespace optimus
