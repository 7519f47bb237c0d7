// What a worker's process is told from outside: by signals, and by a machine's notice (notice.h).
#pragma once

#include <functional>

namespace optimus {

struct WorkerSignals {
  std::function<bool()> is_interrupted;    // the run is to end
  std::function<bool()> is_told_to_leave;  // this worker is to go, the others go on
};

}  // namespace optimus
