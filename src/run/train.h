// A training run, from settings to a finished run folder. include/optimus/train.h is the same for programs that do not watch.
#pragma once

#include <functional>

#include "base/event.h"
#include "observe/status_line.h"
#include "optimus/train.h"

namespace optimus {

// How this program starts itself as a worker, and whether the user wants it to end.
struct WorkerCommand {
  Path program;
  std::vector<std::string> words;
  std::function<bool()> is_interrupted;
};

// table: where the options were declared, so that settings.toml tells the origin of each; may be null. Progress and warnings
// go to events and line; events may throw Interrupted, after which the run folder is whole up to the last step.
// A run on several devices has its workers as processes where there is a command for them, else as threads.
TrainResult train(TrainOptions& options, OptionTable* table, EventSink& events, StatusLine& line,
                  const WorkerCommand* workers = nullptr);

}  // namespace optimus
