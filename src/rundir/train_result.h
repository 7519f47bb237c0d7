// The result of a training run. A worker process sends it to the process that started it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"

namespace optimus {

enum class TrainEnd {
  finished,  // all steps are done
  stopped,   // stopped on request; the checkpoint of the last step is written
  left,      // this worker left the run; the other workers continue
};

struct TrainResult {
  TrainEnd end = TrainEnd::finished;
  std::string run{};  // folder with settings.toml, plan.json, metrics.jsonl, tensorboard/, checkpoints/
  std::string checkpoint{};  // of the last step
  std::int64_t steps = 0;
  double loss = 0;  // of the last step
  std::optional<double> validation_loss{};
  double tokens_per_second = 0;
  std::string sample{};  // generated text
};

Json serialize(const TrainResult& result);
// Throws UserError if the JSON value is not a result.
TrainResult parse_train_result(const Json& json);

}  // namespace optimus
