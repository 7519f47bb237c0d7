// The first level of checkpoints: in shared memory of the host (a tmpfs folder), written often because it is quick, of use when the
// processes of a run die and the host lives. Files in the run's folder are the second (checkpoint/save.h); both are checkpoints of the
// same form, and a resume takes the newest.
//
// It lies in BASE/optimus-XXXXXX, which RUN/memory.json names: a folder of a random name that only its owner may enter, since others can
// write to BASE. A run that was moved or copied has none: two runs must not share one. It is removed when the run ends well, and by
// `optimus checkpoint clear RUN`. Of workers that the command itself has started; those of launchers have host_memory.h. Pure.
#pragma once

#include <optional>

#include "base/file.h"
#include "checkpoint/checkpoints.h"

namespace optimus {

struct MemoryNeed {
  Bytes state;  // of one checkpoint; two must have room, the newest and the one that is being written
};
// The folder of the run: the one that there is, or a new one. Throws UserError when `base` is not there or has too little room.
Path make_memory_level(FileSystem& files, const Path& run, const Path& base, const MemoryNeed& need);
// Nothing when the run has none, or it is gone (the host was started anew), or belongs to another folder.
std::optional<Path> find_memory_level(const Path& run);
// With everything in it. That something cannot be removed is told.
Outcome<void> remove_memory_level(FileSystem& files, const Path& run);

// What this and host_memory.h share: the list in the run's folder, how folders are called, and whose they are.
inline constexpr const char* kMemoryFile = "memory.json";
inline constexpr std::string_view kMemoryName = "optimus-";
std::string memory_owner(const Path& run);
// This user's alone: in a folder that everybody may write to, somebody else may have made one of that name.
bool is_own_folder(const Path& folder);
// Throws UserError unless two steps have room.
void refuse_too_small(const Path& base, const MemoryNeed& need);

}  // namespace optimus
