// A training whose ranks were started by an external launcher (torchrun, mpirun, srun, a Kubernetes job,
// `optimus launch`). This process is one of the ranks. Rank 0 resolves the settings, hosts the store for the
// rendezvous (rendezvous.h) and writes to the console. The other ranks receive all settings from rank 0.
// There is no supervising process. A rank that fails sets a key in the store, which ends the other ranks.
#pragma once

#include <optional>

#include "run/launched_rank.h"
#include "rundir/train_result.h"

namespace optimus {

struct LaunchedEnd {
  int code = 0;
  std::optional<TrainResult> result;  // the result of the run; set only on rank 0
};

// On rank 0, throws UserError with a one-line message if the run fails on any rank, and Interrupted if it is
// stopped before the rendezvous is complete. The other ranks throw only if rank 0 cannot report the error for
// them.
LaunchedEnd train_launched(const LaunchedTraining& training);

}  // namespace optimus
