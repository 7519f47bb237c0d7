// Trains a model on data and leaves a run folder.
//
//   optimus::TrainResult done = optimus::train("gpt2", "corpus.txt", {.steps = 200});
//
// The model is a preset ("gpt2", "llama3-8b"), a Hugging Face folder or a config.json; the data is a text or
// jsonl file, a folder or a token-file prefix. All other options have defaults chosen from model, data and
// hardware; TrainOptions (settings/options.h) lists them. With `devices`, several ranks train as threads of
// the program. Throws UserError with one line that states the problem and the fix.
#pragma once

#include <optional>
#include <string>

#include "settings/options.h"

namespace optimus {

struct TrainResult {
  std::string run{};  // the folder with settings.toml, plan.json, metrics.jsonl, tensorboard/, checkpoints/
  std::string checkpoint{};  // of the last step
  std::int64_t steps = 0;
  double loss = 0;  // of the last step
  std::optional<double> validation_loss{};
  double tokens_per_second = 0;
  std::string sample{};  // generated text
};

TrainResult train(const std::string& model, const std::string& data, TrainOptions options = {});

}  // namespace optimus
