// Manages the hosts' memory (host_memory.h) of a launcher's ranks: rank 0 announces it, each rank opens it,
// and it is removed when the run has succeeded or the user has ended it. Without libtorch.
#pragma once

#include <functional>

#include "launch/join_request.h"
#include "rundir/train_result.h"
#include "settings/run_spec.h"

namespace optimus {

// Called by rank 0 before the other ranks know the run; no effect without --memory-every. Throws UserError.
void announce_memory(const TrainOptions& options, const Path& run, const std::vector<PresentRank>& ranks);
// Sets up the host's memory and calls `run_training`. Rethrows its exceptions, and throws UserError if the
// memory cannot be set up.
TrainResult run_with_memory(const RunSpec& spec, const Path& run, int rank,
                            const std::function<TrainResult()>& run_training);
// For a joining rank: make_memory_of_joining_worker() creates the folder before the rank asks to join, and
// run_and_remove_memory() calls `run_training` and removes the folder afterwards.
void make_memory_of_joining_worker(const TrainOptions& options, const Path& run);
TrainResult run_and_remove_memory(const Path& run, const std::function<TrainResult()>& run_training);

}  // namespace optimus
