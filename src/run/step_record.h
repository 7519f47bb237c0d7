// Sends the metrics of steps to rank 0 if it has no part in the plan: rank 0 keeps the records, and one rank
// of the plan sends it the metrics of each step.
#pragma once

#include "base/deadline.h"
#include "comm/comm.h"
#include "observe/metrics.h"

namespace optimus {

// Both throw PeersLost.
void send_step_record(Comm& comm, const StepMetrics& metrics, const Deadline& deadline);
// Fills in the values that only ranks of the plan have.
void receive_step_record(Comm& comm, int sender, StepMetrics& metrics, const Deadline& deadline);

}  // namespace optimus
