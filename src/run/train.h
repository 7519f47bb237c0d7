// Executes a training run, from settings to a finished run folder. Other programs use include/optimus/train.h
// instead.
#pragma once

#include <string>

#include "base/event.h"
#include "observe/status_line.h"
#include "run/worker_command.h"
#include "rundir/train_result.h"
#include "settings/options.h"

namespace optimus {

// `table` is the table in which the options were declared. It provides the origins that settings.toml
// records, and may be null. Progress and warnings go to `events` and `line`. If `events` throws Interrupted
// before the run folder exists, so does this function. If `events` throws Interrupted later, the training
// stops after the current step, and the result records that. The ranks of a run on several devices are
// processes if `workers` is given, and threads otherwise.
TrainResult train(TrainOptions& options, OptionTable* table, EventSink& events, StatusLine& line,
                  const WorkerCommand* workers = nullptr);

// Like the function above, but the ranks are always threads of this process, and only the result is reported.
TrainResult train(const std::string& model, const std::string& data, TrainOptions options = {});

}  // namespace optimus
