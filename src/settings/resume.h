// Resumes a run: reads its settings and finds its newest valid checkpoint.
#pragma once

#include <optional>

#include "base/event.h"
#include "base/file.h"
#include "checkpoint/training_state.h"
#include "rundir/folder_lock.h"
#include "settings/options.h"

namespace optimus {

struct ResumedRun {
  // Empty if the run ended before its first checkpoint. It then restarts from step 0.
  std::optional<Path> checkpoint;
  TrainingState state;
  FolderLock lock;  // acquired before anything in the run is changed
};

// Sets the options that are not given to the settings of the run `options.resume`. If any layout option is
// given (--devices, --plan, …), all layout settings of the run are dropped. Then finds the newest checkpoint.
// All its bytes are verified, and damaged checkpoints are skipped with a warning. Throws ReportedError if the
// run cannot be resumed.
ResumedRun resume(TrainOptions& options, OptionTable& table, FileSystem& files, EventSink& events);

// Marks options that differ from their defaults as given by the user. Used for options that a program has set
// directly.
void mark_explicit_options(OptionTable& table);

}  // namespace optimus
