// A training on several worker processes of this machine: the code of the starting process, and the code of
// a worker.
#pragma once

#include "run/worker_command.h"
#include "rundir/train_result.h"
#include "rundir/worker_protocol.h"
#include "settings/run_spec.h"

namespace optimus {

// Starts `size` workers and waits for them. The run's folder must exist; `table` contains the options of
// `spec` with their origins. Throws UserError with one line if a worker fails. No process is left when it
// returns.
TrainResult train_with_workers(const RunSpec& spec, const OptionTable& table, int size,
                               const WorkerCommand& command);

// In a worker: reads the run's settings and runs the rank's part. Returns the exit code.
int train_as_worker(const WorkerSpec& worker, TrainOptions& options, OptionTable& table,
                    const StopToken& stop);

}  // namespace optimus
