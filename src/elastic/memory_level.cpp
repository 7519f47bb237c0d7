// Implements memory_level.h.
#include "elastic/memory_level.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "elastic/host_memory.h"

namespace optimus {

Path make_memory_level(FileSystem& files, const Path& run, const Path& base,
                       const MemoryRequirement& requirement) {
  check_space(base, requirement);
  if (const std::optional<Path> folder = find_memory_level(run)) return *folder;
  std::string name = (std::filesystem::absolute(base) / (std::string(kMemoryName) + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr)
    throw RuntimeFailure("--memory-folder {}: cannot create a folder there: {}", base.string(),
                         std::strerror(errno));
  const Json document = {{"run", memory_owner(run)}, {"folder", name}};
  const Outcome<void> written = write_atomically(files, run / kMemoryFile, document.dump(2) + "\n");
  if (!written) {
    (void)files.remove(name);
    throw RuntimeFailure("{}", written.error().why);
  }
  return name;
}

std::optional<Path> find_memory_level(const Path& run) {
  std::error_code error;
  if (!std::filesystem::exists(run / kMemoryFile, error)) return std::nullopt;
  const Json document = read_json(run / kMemoryFile);
  const JsonView view(document, (run / kMemoryFile).string());
  if (view.find("hosts")) return std::nullopt;  // belongs to a launcher's ranks (host_memory.h)
  const Path folder = view.at("folder").text();
  if (view.at("run").text() != memory_owner(run) || !starts_with(folder.filename().string(), kMemoryName))
    return std::nullopt;
  return is_own_folder(folder) ? std::optional(folder) : std::nullopt;
}

Outcome<void> remove_memory_level(FileSystem& files, const Path& run) {
  try {
    if (const std::optional<Path> folder = find_memory_level(run)) {
      for (const CheckpointEntry& entry : list_checkpoints(*folder))
        if (Outcome<void> outcome = remove_checkpoint(files, entry.folder); !outcome) return outcome;
      for (const Path& rest : {*folder / kCheckpointsFolder, *folder})
        if (Outcome<void> outcome = files.remove(rest); !outcome) return outcome;
    }
    // Other hosts may also have folders for this run, so the record in the run's folder is kept.
    if (find_host_memory(run)) {
      remove_host_memory(run, false);
      return {};
    }
    return files.remove(run / kMemoryFile);
  } catch (const ReportedError& error) {
    return failure("{}", error.what());
  }
}

}  // namespace optimus
