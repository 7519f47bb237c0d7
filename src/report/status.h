// How a run is, from its folder alone: optimus status. Works while it runs, and afterwards.
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
  std::string state;  // running, stopped, gone; "on another host" where this one cannot know
};

struct RunStatus {
  bool is_running = false;
  std::int64_t step = 0, epoch = 0;   // the last that is complete, and its plan's
  std::optional<std::int64_t> steps;  // that it is to have, as its settings say
  std::optional<double> loss, tokens_per_second;
  Plan plan;
  std::vector<WorkerStatus> workers;
  int can_lose = 0;  // devices: any so many may be lost, and the others still hold all masters and moments
  // The same of hosts, where the workers are on several: any so many, and those with which some state would go.
  std::optional<int> can_lose_hosts{};
  std::vector<std::string> lost_with_hosts{};
  std::vector<int> lost_with;  // devices of which that is not so: one more (plan/layouts.h, fewest_holders)
};

// Throws UserError when no run lies there.
RunStatus status_of(const Path& run);

}  // namespace optimus
