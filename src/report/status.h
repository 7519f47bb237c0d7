// The status of a run for `optimus status`. It is read only from the run's folder, during or after the run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "plan/plan.h"
#include "rundir/worker_protocol.h"

namespace optimus {

struct WorkerStatus {
  WorkerEntry worker;
  std::string state;  // running, stopped or gone; "on another host" if it cannot be determined here
};

struct RunStatus {
  bool is_running = false;
  std::int64_t step = 0, epoch = 0;   // the last complete step, and its plan epoch
  std::optional<std::int64_t> steps;  // the planned number of steps, from the settings
  std::optional<double> loss, tokens_per_second;
  Plan plan;
  std::vector<WorkerStatus> workers;
  int num_tolerated_losses = 0;  // any set of this size may be lost without losing masters or moments
  // If the workers are on several hosts: the number of hosts that may be lost without losing state, and a
  // smallest set of hosts (`fatal_hosts`) whose loss would lose state.
  std::optional<int> num_tolerated_host_losses{};
  std::vector<std::string> fatal_hosts{};
  // A smallest set of devices whose loss would lose state (plan/layouts.h, smallest_owner_set).
  std::vector<int> fatal_devices;
};

// Throws ReportedError if the folder is not a run.
RunStatus status_of(const Path& run);

}  // namespace optimus
