// The checkpoints of a run: RUN/checkpoints/step-N. Which there are, which is the newest whole one, which may go.
// Read next: checkpoint/checkpoint.h, checkpoint/save.h.
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
  Bytes bytes;  // of the files in it
  // It has the name step-N, its manifest is valid and of that step, and the manifest's files are there in their size.
  // Contents are not read: Checkpoint::verify does.
  bool is_whole = false;
};

// By step, those that are not whole (a save under way, or what a killed one has left) included. Nothing when the run has
// no checkpoints. Throws UserError when the folder cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const Path& run);
std::optional<CheckpointEntry> newest_whole(const Path& run);

// What a user named: all checkpoints of a run, or the one that it is. Throws UserError when it is neither.
std::vector<CheckpointEntry> checkpoints_at(const Path& run_or_checkpoint);
// A checkpoint's folder for what a user named: a run (its newest whole one) or a checkpoint. Throws UserError.
Path find_checkpoint(const Path& run_or_checkpoint);

// What killed saves and removals have left: a temporary folder that is complete gets its name, if that is free; other temporary
// folders, and step-N without a manifest, are removed. step-N with a manifest stays, damaged or not. Not while a save is under
// way. Call it before resuming.
Outcome<void> clear_leftovers(FileSystem& files, const Path& run);

struct Retention {
  std::int64_t keep_last = 0;   // so many of the newest; 0: all
  std::int64_t keep_every = 0;  // besides, those whose step is a multiple of this; 0: none
  // The step saved last. Later ones are neither counted nor removed: a run that went on from an older checkpoint, because
  // these are damaged, must not lose its own to them.
  std::int64_t newest = INT64_MAX;
};
// Removes whole checkpoints that neither rule keeps, oldest first; never the newest.
Outcome<void> apply_retention(FileSystem& files, const Path& run, const Retention& retention);

// The manifest first, so that no instant of it leaves something that looks whole.
Outcome<void> remove_checkpoint(FileSystem& files, const Path& folder);

}  // namespace optimus
