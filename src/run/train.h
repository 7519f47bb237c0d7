// A training run, from settings to a finished run folder. include/optimus/train.h is the same for programs that do not watch.
#pragma once

#include "base/event.h"
#include "observe/status_line.h"
#include "optimus/train.h"

namespace optimus {

// table: where the options were declared, so that settings.toml tells the origin of each; may be null. Progress and warnings
// go to events and line; events may throw Interrupted, after which the run folder is whole up to the last step.
TrainResult train(TrainOptions& options, OptionTable* table, EventSink& events, StatusLine& line);

}  // namespace optimus
