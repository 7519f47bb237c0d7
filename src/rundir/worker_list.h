// The run folder's workers.json: the live ranks of a run.
#pragma once

#include <vector>

#include "base/file.h"
#include "rundir/worker_protocol.h"

namespace optimus {

// Empty where the folder has no list. Throws UserError for a file of another form.
std::vector<WorkerEntry> listed_workers(const Path& run);

}  // namespace optimus
