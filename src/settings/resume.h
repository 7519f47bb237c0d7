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
  std::optional<Path> checkpoint;  // empty: the run ended before its first checkpoint and starts from step 0
  TrainingState state;
  FolderLock lock;  // taken before anything in the run is changed
};

// Fills the options that are not given from the settings of the run `options.resume`. If any layout option
// is given (--devices, --plan, …), all layout settings of the run are dropped. Then finds the checkpoint:
// every byte is verified, and damaged checkpoints are skipped with a warning. Throws ReportedError.
ResumedRun resume(TrainOptions& options, OptionTable& table, FileSystem& files, EventSink& events);

// For options set by a program: those that differ from their defaults count as given.
void mark_explicit_options(OptionTable& table);

}  // namespace optimus
