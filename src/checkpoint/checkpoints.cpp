// See checkpoints.h.
#include "checkpoint/checkpoints.h"

#include <algorithm>

#include "checkpoint/manifest.h"
#include "checkpoint/step_folder.h"

namespace optimus {
namespace {

namespace fs = std::filesystem;

// Returns the folders sorted by step. If a step has several folders, the one with the final name comes last.
std::vector<StepFolder> step_folders(const Path& run) {
  const Path parent = run / kCheckpointsFolder;
  std::vector<StepFolder> result;
  std::error_code error;
  if (!fs::exists(parent, error) && !error) return result;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_directory(ignored)) continue;
    if (auto folder = parse_step_folder(it->path())) result.push_back(std::move(*folder));
  }
  if (error) throw RuntimeFailure("cannot read {}: {}", parent.string(), error.message());
  std::sort(result.begin(), result.end(), [](const StepFolder& a, const StepFolder& b) {
    if (a.step != b.step) return a.step < b.step;
    return a.is_temporary != b.is_temporary ? a.is_temporary : a.path < b.path;
  });
  return result;
}

Bytes bytes_in(const Path& folder) {
  Bytes sum;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_regular_file(ignored)) continue;
    if (const auto size = it->file_size(ignored); !ignored) sum += Bytes(static_cast<std::int64_t>(size));
  }
  return sum;
}

// Whether the manifest is for this step and all files that it lists exist with the right size.
bool is_complete(const StepFolder& folder) {
  try {
    const Manifest manifest = read_manifest(folder.path);
    if (manifest.step != folder.step) return false;
    return std::all_of(manifest.files.begin(), manifest.files.end(), [&](const CheckpointFile& file) {
      std::error_code error;
      const auto size = fs::file_size(folder.path / file.name, error);
      return !error && static_cast<std::int64_t>(size) == file.bytes.value;
    });
  } catch (const ReportedError&) {
    return false;
  }
}

bool is_whole(const StepFolder& folder) { return !folder.is_temporary && is_complete(folder); }

CheckpointEntry entry_of(const StepFolder& folder) {
  return {folder.step, folder.path, bytes_in(folder.path), is_whole(folder)};
}

bool has_manifest(const Path& folder) {
  std::error_code error;
  return fs::exists(folder / kManifestFile, error) || error;
}

// Returns true if the path is a checkpoint and false if it is a run. Throws UserError if it is neither.
bool is_checkpoint(const Path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    throw UserError("{}: no such folder; expected a run or a checkpoint", path.string());
  if (has_manifest(path)) return true;
  if (!fs::exists(path / kCheckpointsFolder, error) && !fs::exists(path / "settings.toml", error))
    throw UserError("{}: neither a run (it has no folder {}) nor a checkpoint (it has no {})", path.string(),
                    kCheckpointsFolder, kManifestFile);
  return false;
}

// Renames a complete temporary folder to its final name. Returns whether it was renamed.
bool restore_final_name(FileSystem& files, const StepFolder& folder) {
  std::error_code error;
  if (fs::exists(folder.final_path(), error) || error || !is_complete(folder)) return false;
  return files.rename(folder.path, folder.final_path()).has_value();
}

}  // namespace

std::vector<CheckpointEntry> list_checkpoints(const Path& run) {
  std::vector<CheckpointEntry> result;
  for (const StepFolder& folder : step_folders(run)) result.push_back(entry_of(folder));
  return result;
}

std::optional<CheckpointEntry> newest_complete(const Path& run) {
  const std::vector<StepFolder> folders = step_folders(run);
  const auto newest = std::find_if(folders.rbegin(), folders.rend(), is_whole);
  if (newest == folders.rend()) return std::nullopt;
  return CheckpointEntry{newest->step, newest->path, bytes_in(newest->path), true};
}

std::vector<CheckpointEntry> checkpoints_at(const Path& run_or_checkpoint) {
  if (!is_checkpoint(run_or_checkpoint)) return list_checkpoints(run_or_checkpoint);
  // The folder of a copied checkpoint may have any name, so the step is read from the manifest.
  const auto folder = parse_step_folder(run_or_checkpoint);
  CheckpointEntry entry{folder ? folder->step : 0, run_or_checkpoint, bytes_in(run_or_checkpoint), false};
  try {
    entry.step = read_manifest(run_or_checkpoint).step;
    entry.is_whole = is_complete({entry.step, false, run_or_checkpoint});
  } catch (const ReportedError&) {
  }
  return {entry};
}

Path find_checkpoint(const Path& run_or_checkpoint) {
  if (is_checkpoint(run_or_checkpoint)) return run_or_checkpoint;
  if (const auto newest = newest_complete(run_or_checkpoint)) return newest->folder;
  throw UserError("{}: the run has no complete checkpoint", run_or_checkpoint.string());
}

Outcome<void> clear_leftovers(FileSystem& files, const Path& run) {
  try {
    for (const StepFolder& folder : step_folders(run)) {
      // Removes only the remains of killed saves or removals. A damaged folder that has a manifest is left to
      // the user.
      if (folder.is_temporary ? restore_final_name(files, folder) : has_manifest(folder.path)) continue;
      if (Outcome<void> outcome = remove_checkpoint(files, folder.path); !outcome) return outcome;
    }
  } catch (const ReportedError& error) {
    return failure("{}", error.what());
  }
  return {};
}

Outcome<void> apply_retention(FileSystem& files, const Path& run, const Retention& retention) {
  if (retention.keep_last <= 0) return {};
  try {
    std::vector<StepFolder> complete = step_folders(run);
    std::erase_if(complete, [&](const StepFolder& folder) {
      return folder.step > retention.newest || !is_whole(folder);
    });
    const auto keep = static_cast<std::size_t>(retention.keep_last);
    for (std::size_t i = 0; i + keep < complete.size(); ++i) {
      if (retention.keep_every > 0 && complete[i].step % retention.keep_every == 0) continue;
      if (Outcome<void> outcome = remove_checkpoint(files, complete[i].path); !outcome) return outcome;
    }
  } catch (const ReportedError& error) {
    return failure("{}", error.what());
  }
  return {};
}

Outcome<void> remove_checkpoint(FileSystem& files, const Path& folder) {
  if (Outcome<void> outcome = files.remove(folder / kManifestFile); !outcome) return outcome;
  // Syncing may fail if the disk is full. In the worst case, files without a manifest reappear after a crash.
  (void)files.sync_folder(folder);
  std::vector<Path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    paths.push_back(it->path());
  if (error == std::errc::no_such_file_or_directory) return {};
  if (error) return failure("cannot remove {}: {}", folder.string(), error.message());
  for (const Path& path : paths)
    if (Outcome<void> outcome = files.remove(path); !outcome) return outcome;
  return files.remove(folder);
}

}  // namespace optimus
