// Reads workers.json from a run's folder. It lists the live ranks of the run.
#pragma once

#include <vector>

#include "base/file.h"
#include "rundir/worker_protocol.h"

namespace optimus {

// Returns an empty vector if the folder has no workers.json. Throws UserError if the file is invalid.
std::vector<WorkerEntry> listed_workers(const Path& run);

}  // namespace optimus
