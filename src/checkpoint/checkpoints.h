// The checkpoints of a run (RUN/checkpoints/step-N): lists them, finds the newest complete one, and removes
// those that are no longer needed. Read next: checkpoint/checkpoint.h, checkpoint/save.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/file.h"

namespace optimus {

inline constexpr const char* kCheckpointsFolder = "checkpoints";

struct CheckpointEntry {
  std::int64_t step = 0;
  Path folder;
  Bytes bytes;  // of all files in the folder
  // True if the folder is named step-N, its manifest is valid and for step N, and all files in the manifest
  // exist with the right size. The contents of the files are not checked; Checkpoint::verify does that.
  bool is_whole = false;
};

// Lists all checkpoints by step, including incomplete ones (from a save that is in progress or was killed).
// Returns an empty vector if the run has no checkpoints. Throws RuntimeFailure if the folder cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const Path& run);
std::optional<CheckpointEntry> newest_complete(const Path& run);

// Returns the checkpoints for a path from the user: all checkpoints if it is a run, or the checkpoint itself.
// Throws UserError if the path is neither.
std::vector<CheckpointEntry> checkpoints_at(const Path& run_or_checkpoint);
// Returns the checkpoint folder for a path from the user: the newest complete checkpoint if it is a run, or
// the checkpoint itself. Throws UserError if there is none.
Path find_checkpoint(const Path& run_or_checkpoint);

// Cleans up after killed saves and removals. A complete temporary folder is renamed to its final name if that
// name is not in use. Other temporary folders, and step-N folders without a manifest, are removed. A step-N
// folder with a manifest is kept, even if it is damaged. Call it before resuming, and never during a save.
Outcome<void> clear_leftovers(FileSystem& files, const Path& run);

struct Retention {
  std::int64_t keep_last = 0;   // number of most recent checkpoints to keep; 0: all
  std::int64_t keep_every = 0;  // also keep checkpoints whose step is a multiple of this; 0: none
  // The step of the last save. Later checkpoints are neither counted nor removed. Otherwise a run that
  // resumed from an older checkpoint, because the later ones are damaged, would remove its new checkpoints.
  std::int64_t newest = INT64_MAX;
};
// Removes the complete checkpoints that neither rule keeps, oldest first. Never removes the newest one.
Outcome<void> apply_retention(FileSystem& files, const Path& run, const Retention& retention);

// Removes a checkpoint. The manifest is removed first, so that a partly removed checkpoint never appears
// complete.
Outcome<void> remove_checkpoint(FileSystem& files, const Path& folder);

}  // namespace optimus
