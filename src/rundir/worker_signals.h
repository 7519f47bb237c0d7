// Requests that a worker's process receives from outside: through signals, and through a preemption notice
// (preemption_notice.h).
#pragma once

#include <functional>

namespace optimus {

struct WorkerSignals {
  std::function<bool()> is_interrupted;      // the run must end
  std::function<bool()> is_leave_requested;  // this worker must leave; the other workers continue
};

}  // namespace optimus
