// Sends the metrics of each step to rank 0 if the plan does not use rank 0, because rank 0 keeps the records.
// One of the ranks that the plan uses sends them.
#pragma once

#include "base/deadline.h"
#include "comm/comm.h"
#include "observe/metrics.h"

namespace optimus {

// Both functions throw PeersLost.
void send_step_record(Comm& comm, const StepMetrics& metrics, const Deadline& deadline);
// Fills in the values that only ranks used by the plan have.
void receive_step_record(Comm& comm, int sender, StepMetrics& metrics, const Deadline& deadline);

}  // namespace optimus
