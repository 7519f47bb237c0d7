// Manages host memory (host_memory.h) for ranks that were started by a launcher. Rank 0 announces the memory,
// and each rank opens it. It is removed when the run has succeeded or the user has stopped it. Does not use
// libtorch.
#pragma once

#include <functional>

#include "launch/join_request.h"
#include "rundir/train_result.h"
#include "settings/run_spec.h"

namespace optimus {

// Called by rank 0 before the other ranks know the run. Has no effect without --memory-every. Throws
// UserError.
void announce_memory(const TrainOptions& options, const Path& run, const std::vector<PresentRank>& ranks);
// Sets up the host memory and calls `run_training`. Propagates its exceptions. Throws UserError if the memory
// cannot be set up.
TrainResult run_with_memory(const RunSpec& spec, const Path& run, int rank,
                            const std::function<TrainResult()>& run_training);
// Used by joining ranks. make_memory_of_joining_worker() creates the folder before the rank asks to join.
// run_and_remove_memory() calls `run_training` and then removes the folder.
void make_memory_of_joining_worker(const TrainOptions& options, const Path& run);
TrainResult run_and_remove_memory(const Path& run, const std::function<TrainResult()>& run_training);

}  // namespace optimus
