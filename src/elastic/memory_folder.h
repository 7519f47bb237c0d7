// The folder that a run has in host memory: its record in the run's folder, its name, its owner and the space
// that it needs. Shared by memory_level.h and host_memory.h.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"
#include "base/units.h"

namespace optimus {

// The file in the run's folder that contains the path of the folder in memory.
inline constexpr const char* kMemoryFile = "memory.json";
// The prefix of the folder's name.
inline constexpr std::string_view kMemoryName = "optimus-";
// The text in memory.json that identifies the run. It contains the path of the run, so that it does not match
// a copy of the run in another folder.
std::string memory_owner(const Path& run);
// Whether the folder belongs to this user and other users cannot access it. In a world-writable parent
// folder, another user may have created a folder with the same name.
bool is_own_folder(const Path& folder);

struct MemoryRequirement {
  Bytes state;  // of one checkpoint; two must fit, the newest and the one that is being written
};
// Throws ReportedError if there is not enough space for two checkpoints.
void check_space(const Path& base, const MemoryRequirement& requirement);

}  // namespace optimus
