// A training whose ranks are threads of this process: for programs that call train() and have no worker
// program to start, and for runs of one rank. For workers that are processes, see train_workers.h.
#pragma once

#include <functional>

#include "run/rank_context.h"
#include "rundir/train_result.h"
#include "settings/options.h"

namespace optimus {

// The work of one rank; only the result of rank 0 is used.
using RankBody = std::function<TrainResult(const RankContext& rank)>;

// Rank 0 runs on the calling thread. If one rank fails, the other ranks end too, and the failure is thrown.
// An interrupt from `events`, which rank 0 reports to, ends all ranks after the same step. The run's folder
// must exist; workers.json lists the ranks during the call.
TrainResult train_with_threads(const Path& run, const TrainOptions& options, int num_ranks, EventSink& events,
                               StatusLine& line, const RankBody& body);

}  // namespace optimus
