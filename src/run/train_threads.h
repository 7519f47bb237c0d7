// Trains with ranks that are threads of this process. Used by programs that call train() without a worker
// program, and for single-rank runs. train_workers.h trains with worker processes.
#pragma once

#include <functional>

#include "run/rank_context.h"
#include "rundir/train_result.h"
#include "settings/options.h"

namespace optimus {

// The work of one rank. Only the result of rank 0 is used.
using RankBody = std::function<TrainResult(const RankContext& rank)>;

// Rank 0 runs on the calling thread. If one rank fails, the other ranks end too, and the failure is thrown.
// If `events`, to which rank 0 reports, throws Interrupted, all ranks end after the same step. The run folder
// must exist. workers.json lists the ranks during the call.
TrainResult train_with_threads(const Path& run, const TrainOptions& options, int num_ranks, EventSink& events,
                               StatusLine& line, const RankBody& body);

}  // namespace optimus
