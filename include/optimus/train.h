// Trains a model and writes a run folder.
//
//   optimus::TrainResult result = optimus::train("gpt2", "corpus.txt", {.steps = 200});
//
// The training runs in worker processes (include/optimus/run.h explains how they are found). If torchrun,
// Slurm, MPI or Kubernetes started this process as one of several ranks, train() joins the job as that rank,
// and every rank must call it. Blocks until the training has ended. Throws Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "optimus/error.h"
#include "optimus/export.h"
#include "optimus/options.h"

namespace optimus {
inline namespace v0 {

struct TrainResult {
  std::string run;         // the run folder: settings.toml, plan.json, metrics.jsonl, checkpoints/
  std::int64_t steps = 0;  // the last completed step
  double loss = 0;         // of the last step
  std::optional<double> validation_loss{};
  double tokens_per_second = 0;
  std::string sample{};      // generated text, unless {"sample", "0"} was set
  bool is_stopped = false;   // the run was asked to stop and ended after saving a checkpoint
  bool is_reporting = true;  // false on ranks of a launched job other than rank 0, which report no result
};

OPTIMUS_API TrainResult train(const std::string& model, const std::string& data, TrainOptions options = {});

}  // namespace v0
}  // namespace optimus
