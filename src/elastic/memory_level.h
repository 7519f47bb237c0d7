// The first checkpoint level, in the host's shared memory (a tmpfs folder). It is fast, so checkpoints can be
// written often. They survive a failure of the run's processes but not of the host. Files in the run's folder
// are the second level (checkpoint/save.h). Both levels have the same format, and a resume uses the newest
// checkpoint of either.
//
// The folder is BASE/optimus-XXXXXX and is recorded in RUN/memory.json. Because other users can write to
// BASE, the folder has a random name and only its owner can access it. A run that was moved or copied has no
// memory folder, because two runs must not share one. The folder is removed when the run ends successfully,
// and by `optimus checkpoint clear RUN`. Used for workers that `optimus train` starts. host_memory.h is used
// for workers that a launcher starts. No side effects.
#pragma once

#include <optional>

#include "base/file.h"
#include "checkpoint/checkpoints.h"
#include "elastic/memory_folder.h"

namespace optimus {

// Returns the run's memory folder and creates it if needed. Throws ReportedError if `base` does not exist or
// has too little space.
Path make_memory_level(FileSystem& files, const Path& run, const Path& base,
                       const MemoryRequirement& requirement);
// Returns the run's memory folder. Returns nullopt if the run has none, if it no longer exists (because the
// host was restarted), or if it belongs to another run folder.
std::optional<Path> find_memory_level(const Path& run);
// Removes the folder and its content. Fails if anything cannot be removed.
Outcome<void> remove_memory_level(FileSystem& files, const Path& run);

}  // namespace optimus
