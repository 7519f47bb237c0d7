// A training whose ranks somebody's launcher has started (torchrun, mpirun, srun, a Kubernetes job, `optimus launch`): this process is
// one of them. Rank 0 resolves settings, hosts the store in which the others find it (gathering.h) and speaks to people; the others
// take everything over from there. There is no process beside the ranks; when one fails, a note in the store ends the others.
#pragma once

#include <functional>
#include <optional>

#include "cluster/launcher.h"
#include "run/join.h"
#include "run/train.h"

namespace optimus {

struct LaunchedEnd {
  int code = 0;
  std::optional<TrainResult> result;  // rank 0: of the run
};

struct LaunchedTraining {
  LaunchInfo launch;  // of more than one rank
  TrainOptions& options;
  OptionTable& table;
  EventSink& events;
  StatusLine& line;
  std::function<bool()> is_interrupted;
  WorkerSignals signals{};  // the two kinds of it, for runs that go on without who leaves
};

// Rank 0 throws UserError with one line when the run fails, wherever that was, and Interrupted. The others do so only as long as
// rank 0 cannot say it for them.
LaunchedEnd train_launched(const LaunchedTraining& training);

}  // namespace optimus
