// A training on several worker processes of this machine: the code of the starting process, and the code of
// a worker.
#pragma once

#include "run/train_rank.h"
#include "run/worker_command.h"
#include "rundir/worker_protocol.h"
#include "rundir/worker_signals.h"

namespace optimus {

// Starts `size` workers and waits for them. The run's folder must exist; `options` and `table` contain the
// resolved settings. Throws UserError with one line if a worker fails, Interrupted if the user ended the run;
// no process is left in either case.
TrainResult train_with_workers(const PreparedRun& run, const TrainOptions& options, const OptionTable& table,
                               int size, const WorkerCommand& command);

// In a worker: reads the run's settings and runs the rank's part. Returns the exit code.
int train_as_worker(const WorkerSpec& place, TrainOptions& options, OptionTable& table,
                    const WorkerSignals& signals);

}  // namespace optimus
