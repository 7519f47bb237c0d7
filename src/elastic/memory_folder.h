// The folder of a run in a host's memory: its record in the run's folder, its name, its owner and the space
// it needs. Shared by memory_level.h and host_memory.h.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"
#include "base/units.h"

namespace optimus {

// The file in the run's folder that names the folder in memory.
inline constexpr const char* kMemoryFile = "memory.json";
// The prefix of the folder's own name.
inline constexpr std::string_view kMemoryName = "optimus-";
// The text by which memory.json identifies the run that the folder belongs to. It contains the path of the
// run, because a copy of the run has another path.
std::string memory_owner(const Path& run);
// Whether the folder belongs to this user and other users have no access. In a world-writable folder, another
// user may have created a folder of that name.
bool is_own_folder(const Path& folder);

struct MemoryRequirement {
  Bytes state;  // of one checkpoint; two must fit, the newest and the one that is being written
};
// Throws ReportedError unless two steps fit.
void check_space(const Path& base, const MemoryRequirement& requirement);

}  // namespace optimus
