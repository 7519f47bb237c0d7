// In `optimus-engine`: the commands that need libtorch.
#include <fmt/format.h>

#include <csignal>

#include "cli/training.h"
#include "run/train.h"
#include "run/train_launched.h"
#include "run/train_workers.h"

namespace optimus {
namespace {

OrderedJson to_json(const TrainResult& result) {
  OrderedJson json;
  json["run"] = result.run;
  json["steps"] = result.steps;
  json["loss"] = result.loss;
  if (result.validation_loss) json["validation_loss"] = *result.validation_loss;
  json["tokens_per_second"] = result.tokens_per_second;
  if (!result.sample.empty()) json["sample"] = result.sample;
  return json;
}

std::string text(const TrainResult& result) {
  std::string shown;
  if (!result.sample.empty())
    shown += fmt::format("--- a sample of what it has learned\n{}\n---\n", result.sample);
  shown += fmt::format("{} steps, loss {:.4f}", result.steps, result.loss);
  if (result.validation_loss) shown += fmt::format(", validation {:.4f}", *result.validation_loss);
  return shown +
         fmt::format(", {} tokens/s; the run is in {}\n", short_count(result.tokens_per_second), result.run);
}

}  // namespace

int run_training(TrainOptions& options, OptionTable& table, Console& console) {
  std::signal(SIGPIPE, SIG_IGN);  // nobody reads the progress any more: that does not end a training
  const auto is_interrupted = [&] { return console.is_interrupted(); };
  if (const std::optional<WorkerPlace> place = worker_place(process_environment()))
    return train_as_worker(*place, options, table, is_interrupted);
  const LaunchInfo launch = detect_launcher(process_environment());
  if (launch.world_size > 1) {
    const LaunchedEnd end = train_launched({launch, options, table, console, console.line(), is_interrupted});
    if (end.result) console.result(to_json(*end.result), text(*end.result));
    return end.code;
  }
  const WorkerCommand workers{"/proc/self/exe", {"optimus", "train"}, is_interrupted};
  const TrainResult result = train(options, &table, console, console.line(), &workers);
  console.result(to_json(result), text(result));
  return 0;
}

}  // namespace optimus
