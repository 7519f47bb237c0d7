// Exports a plan for another trainer: the files with which Megatron-LM, DeepSpeed or torchtitan run it, or an
// Optimus plan file.
//
// Those systems support grids of equal stages (plan/export_grid.h). A property that they cannot express is
// mapped to the nearest one that they support and recorded in a note. A plan that would train a different
// model or that could not run is refused with a UserError. Nothing is dropped silently. docs/use/export.md
// has the tables. Read next: plan/import.h, the opposite direction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "plan/plan.h"

namespace optimus {

enum class Trainer { megatron, deepspeed, torchtitan, optimus };
std::string text(Trainer trainer);  // "megatron"
// Throws a UserError that names `what` if the word is unknown.
Trainer parse_trainer(const std::string& word, const std::string& what);

// Settings that a launch needs and a plan does not contain. 0 or empty: the script leaves it to a variable or
// to the other trainer's default.
struct ExportSettings {
  int devices_per_node = 8;
  double learning_rate = 3e-4;
  std::int64_t steps = 1000, warmup = 100;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, clip = 1;
  std::int64_t seed = 1234;
  std::string data;       // prefix of token files, or name of a dataset
  std::string tokenizer;  // Hugging Face folder
};

struct ExportedFile {
  std::string name, text;
  bool is_executable = false;
};

struct ExportedPlan {
  Trainer trainer = Trainer::optimus;
  std::vector<ExportedFile> files;  // without subfolders; always includes plan.json
  std::vector<std::string> notes;   // one sentence each: what the other trainer does differently
};

// Throws UserError if the plan is not valid for the model, or if the trainer cannot run it.
ExportedPlan export_plan(const Plan& plan, const ModelSpec& model, Trainer trainer,
                         const ExportSettings& settings = {});

inline constexpr const char* kExportRecord = "optimus-export.json";

// Writes all files and a record of them (optimus-export.json), or nothing. An earlier export in the folder is
// replaced. A folder with any other content is refused. Throws UserError.
void write_export(FileSystem& files, const ExportedPlan& exported, const Path& folder);

}  // namespace optimus
