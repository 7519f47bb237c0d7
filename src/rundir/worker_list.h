// Reads workers.json of a run's folder: the live ranks of a run.
#pragma once

#include <vector>

#include "base/file.h"
#include "rundir/worker_protocol.h"

namespace optimus {

// Empty if the folder has no list. Throws UserError for an invalid file.
std::vector<WorkerEntry> listed_workers(const Path& run);

}  // namespace optimus
