// One line about a run that failed, from what each rank said and what is known of those that said nothing: who was the cause, and
// what another saw of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rundir/worker_protocol.h"

namespace optimus {

struct EndOfRank {
  std::string who;  // "rank 2 (process 71 on node1)"
  std::string log;  // where more stands
  std::optional<WorkerReport> report;
};

// ends: by rank. At least one has failed, lost others or said nothing.
std::string failure_line(const std::vector<EndOfRank>& ends);

// Whether all have reported but those whom others have missed: there is nothing to wait for.
bool is_all_told(const std::vector<EndOfRank>& ends);

}  // namespace optimus
