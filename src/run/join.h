// A process that joins a running training. It was either started with `optimus join`, or it is a worker
// without which the other workers have continued. It prepares everything, registers in the run's store, and
// starts with the order of the generation that it joins (membership_change.h).
#pragma once

#include <string>
#include <vector>

#include "base/stop_token.h"
#include "elastic/membership.h"
#include "observe/status_line.h"
#include "rundir/worker_protocol.h"
#include "settings/options.h"

namespace optimus {

// Returns the workers listed in the run folder, indexed by worker id.
std::vector<WorkerEntry> workers_by_id(const Path& run, const Membership& membership);

struct JoinOptions {
  Path run;
  std::string device{};  // if empty, a GPU if there is one, otherwise the CPU
  int threads = 1;
  Seconds timeout{600};  // how long to wait for the run to accept this worker
  // Whether the process was a worker of this run before. If so, it keeps trying to reach the store, because
  // it may be cut off from the network for a while.
  bool was_member = false;
};

// Trains until the run ends or this worker leaves. Returns the exit code. Throws UserError if the run does
// not accept the worker.
int train_as_joining_worker(const JoinOptions& join, TrainOptions& options, OptionTable& table,
                            const StopToken& stop, StatusLine& line);

}  // namespace optimus
