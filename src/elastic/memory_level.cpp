// Implements memory_level.h.
#include "elastic/memory_level.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "elastic/host_memory.h"

namespace optimus {

std::string memory_owner(const Path& run) {
  std::error_code error;
  return std::filesystem::weakly_canonical(run, error).string();
}

bool is_own_folder(const Path& folder) {
  struct stat facts {};
  return ::lstat(folder.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == ::geteuid() &&
         (facts.st_mode & 077) == 0;
}

void check_space(const Path& base, const MemoryRequirement& requirement) {
  struct statvfs space {};
  if (::statvfs(base.c_str(), &space) != 0)
    throw UserError("--memory-folder {}: {}", base.string(), std::strerror(errno));
  const Bytes free(static_cast<std::int64_t>(space.f_bavail * space.f_frsize));
  // One tenth extra for metadata around the tensors.
  const Bytes needed(2 * requirement.state.value + requirement.state.value / 10);
  if (needed > free)
    throw UserError(
        "--memory-every: two copies of the state need {}, {} has {} free; remove the option, or choose "
        "another --memory-folder",
        text(needed), base.string(), text(free));
}

Path make_memory_level(FileSystem& files, const Path& run, const Path& base,
                       const MemoryRequirement& requirement) {
  check_space(base, requirement);
  if (const std::optional<Path> folder = find_memory_level(run)) return *folder;
  std::string name = (std::filesystem::absolute(base) / (std::string(kMemoryName) + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr)
    throw UserError("--memory-folder {}: cannot create a folder there: {}", base.string(),
                    std::strerror(errno));
  const Json document = {{"run", memory_owner(run)}, {"folder", name}};
  const Outcome<void> written = write_atomically(files, run / kMemoryFile, document.dump(2) + "\n");
  if (!written) {
    (void)files.remove(name);
    throw UserError("{}", written.error().why);
  }
  return name;
}

std::optional<Path> find_memory_level(const Path& run) {
  std::error_code error;
  if (!std::filesystem::exists(run / kMemoryFile, error)) return std::nullopt;
  const Json document = read_json(run / kMemoryFile);
  const JsonView view(document, (run / kMemoryFile).string());
  if (view.find("hosts")) return std::nullopt;  // of a launcher's ranks
  const Path folder = view.at("folder").text();
  if (view.at("run").text() != memory_owner(run) || !starts_with(folder.filename().string(), kMemoryName))
    return std::nullopt;
  return is_own_folder(folder) ? std::optional(folder) : std::nullopt;
}

Outcome<void> remove_memory_level(FileSystem& files, const Path& run) {
  try {
    if (const std::optional<Path> folder = find_memory_level(run)) {
      for (const CheckpointEntry& entry : list_checkpoints(*folder))
        if (Outcome<void> done = remove_checkpoint(files, entry.folder); !done) return done;
      for (const Path& rest : {*folder / kCheckpointsFolder, *folder})
        if (Outcome<void> done = files.remove(rest); !done) return done;
    }
    // Other hosts may have more of it, which the record in the run's folder names.
    if (find_host_memory(run)) {
      remove_host_memory(run, false);
      return {};
    }
    return files.remove(run / kMemoryFile);
  } catch (const UserError& error) {
    return failure("{}", error.what());
  }
}

}  // namespace optimus
