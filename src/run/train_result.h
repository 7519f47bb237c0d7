// The result of a finished training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace optimus {

struct TrainResult {
  std::string run{};  // the folder: settings.toml, plan.json, metrics.jsonl, tensorboard/, checkpoints/
  std::string checkpoint{};  // path of the checkpoint of the last step
  std::int64_t steps = 0;
  double loss = 0;  // of the last step
  std::optional<double> validation_loss{};
  double tokens_per_second = 0;
  std::string sample{};  // generated text
};

}  // namespace optimus
