// Describes a failed run in one line, based on the reports of its ranks: the cause of the failure, and what
// another rank observed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rundir/worker_protocol.h"

namespace optimus {

struct RankOutcome {
  std::string name;  // "rank 2 (process 71 on node1)"
  std::string log;   // path of its log
  std::optional<WorkerReport> report;
};

// `outcomes` is indexed by rank. At least one rank must have failed, lost contact with other
// ranks, or failed to report.
std::string failure_line(const std::vector<RankOutcome>& outcomes);

// Whether all ranks have reported, except those that other ranks report as missing. If so, no further reports
// are expected.
bool have_all_reported(const std::vector<RankOutcome>& outcomes);

}  // namespace optimus
