// A training whose ranks are threads of this process: what a program that calls train() gets, since it has no command of ours to
// start workers with, and a run of one rank. Workers that are processes: train_workers.h.
#pragma once

#include <functional>

#include "run/train_result.h"
#include "settings/options.h"
#include "run/train_rank.h"

namespace optimus {

// The work of one rank; every rank's result but that of rank 0 is dropped.
using RankBody = std::function<TrainResult(const RankPart& part)>;

// Rank 0 on the calling thread. When one fails the others end too, and the failure is thrown; events of rank 0 may throw
// Interrupted, which ends all ranks after the same step. The run's folder is there; workers.json lists the ranks meanwhile.
TrainResult train_with_threads(const Path& run, const TrainOptions& options, int num_ranks, EventSink& events,
                               StatusLine& line, const RankBody& body);

}  // namespace optimus
