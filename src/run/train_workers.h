// Trains with several worker processes on this machine. Contains the code of the starting process and of a
// worker.
#pragma once

#include "run/worker_command.h"
#include "rundir/train_result.h"
#include "rundir/worker_protocol.h"
#include "settings/run_spec.h"

namespace optimus {

// Starts `size` workers and waits for them. The run folder must exist. `table` contains the options of `spec`
// with their origins. Throws UserError with a one-line message if a worker fails. No worker process is left
// when this function returns.
TrainResult train_with_workers(const RunSpec& spec, const OptionTable& table, int size,
                               const WorkerCommand& command);

// Called in a worker process. Reads the run's settings and trains as one rank. Returns the exit code.
int train_as_worker(const WorkerSpec& worker, TrainOptions& options, OptionTable& table,
                    const StopToken& stop);

}  // namespace optimus
