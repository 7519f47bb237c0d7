// See memory_folder.h.
#include "elastic/memory_folder.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace optimus {

std::string memory_owner(const Path& run) {
  std::error_code error;
  return std::filesystem::weakly_canonical(run, error).string();
}

bool is_own_folder(const Path& folder) {
  struct stat folder_stat {};
  return ::lstat(folder.c_str(), &folder_stat) == 0 && S_ISDIR(folder_stat.st_mode) &&
         folder_stat.st_uid == ::geteuid() && (folder_stat.st_mode & 077) == 0;
}

void check_space(const Path& base, const MemoryRequirement& requirement) {
  struct statvfs space {};
  if (::statvfs(base.c_str(), &space) != 0)
    throw RuntimeFailure("--memory-folder {}: {}", base.string(), std::strerror(errno));
  const Bytes free(static_cast<std::int64_t>(space.f_bavail * space.f_frsize));
  // Adds a tenth for the metadata of the tensors.
  const Bytes needed(2 * requirement.state.value + requirement.state.value / 10);
  if (needed > free)
    throw UserError(
        "--memory-every: two copies of the state need {}, but {} has {} free; remove the option, or choose "
        "another --memory-folder",
        text(needed), base.string(), text(free));
}

}  // namespace optimus
