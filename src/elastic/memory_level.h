// The first checkpoint level: in shared memory of the host (a tmpfs folder). It is fast and therefore written
// often, and it survives the death of the run's processes but not of the host. Files in the run's folder are
// the second level (checkpoint/save.h); both have the same format, and a resume uses the newest checkpoint of
// either.
//
// The folder is BASE/optimus-XXXXXX, recorded in RUN/memory.json: a random name and access for its owner
// only, since other users can write to BASE. A run that was moved or copied has no memory folder, because
// two runs must not share one. It is removed when the run ends successfully, and by `optimus checkpoint
// clear RUN`. Used for workers that the command itself started; host_memory.h is used for workers that a
// launcher started. Pure.
#pragma once

#include <optional>

#include "base/file.h"
#include "checkpoint/checkpoints.h"
#include "elastic/memory_folder.h"

namespace optimus {

// Returns the run's folder, existing or new. Throws ReportedError if `base` does not exist or has too
// little space.
Path make_memory_level(FileSystem& files, const Path& run, const Path& base,
                       const MemoryRequirement& requirement);
// The run's memory folder; nullopt if the run has none, if it no longer exists (the host was restarted), or
// if it belongs to another run folder.
std::optional<Path> find_memory_level(const Path& run);
// Removes the folder with its content. Fails if something cannot be removed.
Outcome<void> remove_memory_level(FileSystem& files, const Path& run);

}  // namespace optimus
