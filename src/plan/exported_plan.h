// ExportedPlan: the files that another trainer needs to run a plan, as created by plan/export.h. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace optimus {

enum class Trainer { megatron, deepspeed, torchtitan, optimus };
std::string text(Trainer trainer);  // "megatron"
// Throws a UserError that names `setting_name` if the word is unknown.
Trainer parse_trainer(const std::string& word, const std::string& setting_name);

// Launch settings that are not part of a plan. If a setting is 0 or empty, the script reads it from a
// variable or leaves it at the other trainer's default.
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
  std::vector<ExportedFile> files;  // all in one folder; always includes plan.json
  std::vector<std::string> notes;   // one sentence for each difference in the other trainer
};

}  // namespace optimus
