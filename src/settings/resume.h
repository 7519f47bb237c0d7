// Going on with a run: its settings, and the newest of its checkpoints that is sound.
#pragma once

#include <optional>

#include "base/event.h"
#include "base/file.h"
#include "checkpoint/training_state.h"
#include "rundir/folder_lock.h"
#include "settings/options.h"

namespace optimus {

struct ResumedRun {
  std::optional<Path> checkpoint;  // none: the run was ended before its first, and begins again
  TrainingState state;
  FolderLock lock;  // held from before the run was touched
};

// Fills the options that nobody gave from the settings of the run options.resume; where a way to lay out the run is given
// (--devices, --plan, …), all that the run says about that is dropped. Then finds the checkpoint: every byte of it is checked,
// and one that is damaged is passed over with a warning. Throws UserError.
ResumedRun resume(TrainOptions& options, OptionTable& table, FileSystem& files, EventSink& events);

// For options that came from a program: those that differ from their defaults count as given.
void mark_given(OptionTable& table);

}  // namespace optimus
