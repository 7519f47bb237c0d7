// A training run, from settings to a finished run folder. include/optimus/train.h is the same without
// progress reports.
#pragma once

#include <functional>

#include "base/event.h"
#include "observe/status_line.h"
#include "optimus/train.h"

namespace optimus {

// The command line that starts this program as a worker, and whether the user has interrupted the run.
struct WorkerCommand {
  Path program;
  std::vector<std::string> words;
  std::function<bool()> is_interrupted;
};

// `table` is where the options were declared, so that settings.toml records the origin of each; it may be
// null. Progress and warnings go to `events` and `line`; `events` may throw Interrupted, after which the run
// folder is complete up to the last step. The ranks of a run on several devices are processes if `workers` is
// given, else threads.
TrainResult train(TrainOptions& options, OptionTable* table, EventSink& events, StatusLine& line,
                  const WorkerCommand* workers = nullptr);

}  // namespace optimus
