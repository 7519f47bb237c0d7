// The metrics of a step on their way to a rank 0 that has no part in the plan: rank 0 keeps the records, and
// one rank of the plan sends it the metrics of each step.
#pragma once

#include "base/deadline.h"
#include "comm/comm.h"
#include "observe/metrics.h"

namespace optimus {

// Both throw PeersLost.
void send_step_record(Comm& comm, const StepMetrics& metrics, const Deadline& deadline);
// Fills in what only the ranks of the plan know.
void receive_step_record(Comm& comm, int sender, StepMetrics& metrics, const Deadline& deadline);

}  // namespace optimus
