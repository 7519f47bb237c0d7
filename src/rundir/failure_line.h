// One line about a failed run, from the reports of its ranks and what is known of those without a report: the
// cause, and what another rank observed of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rundir/worker_protocol.h"

namespace optimus {

struct RankOutcome {
  std::string who;  // "rank 2 (process 71 on node1)"
  std::string log;  // path of its log
  std::optional<WorkerReport> report;
};

// ends: by rank. At least one rank has failed, lost others or not reported.
std::string failure_line(const std::vector<RankOutcome>& outcomes);

// Whether all ranks have reported except those that others have missed: there is nothing to wait for.
bool have_all_reported(const std::vector<RankOutcome>& outcomes);

}  // namespace optimus
