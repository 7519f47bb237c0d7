// Implements host_memory.h.
#include "elastic/host_memory.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/save.h"
#include "checkpoint/step_folder.h"
#include "checkpoint/training_state.h"
#include "cluster/token.h"
#include "elastic/memory_folder.h"

namespace optimus {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxStoringRanks = 1 << 20;
constexpr const char* kExportFolder = "memory";  // in the run's folder
constexpr const char* kSmallFiles = "files";     // in a step's folder
constexpr const char* kWriters = "writers";      // in a step's folder: the number of writers

std::optional<std::int64_t> step_of(const Path& path) {
  const auto folder = parse_step_folder(path);
  return folder && folder->is_temporary ? std::optional(folder->step) : std::nullopt;
}

// The entries of a folder, in any order. Returns an empty vector if the folder cannot be read.
std::vector<Path> entries_of(const Path& folder) {
  std::vector<Path> result;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    result.push_back(at->path());
  return result;
}

void remove_inside(const Path& folder) {
  std::error_code error;
  for (const Path& entry : entries_of(folder)) fs::remove_all(entry, error);
}

// Several hosts may write the same file with the same content, so the file is renamed to `to` only when it is
// complete.
void export_file(const Path& from, const Path& to) {
  std::error_code error;
  if (fs::exists(to, error) || from.filename().string().find(".tmp-") != std::string::npos) return;
  const Path partial = to.string() + "." + generate_token() + ".part";
  if (fs::copy_file(from, partial, error)) fs::rename(partial, to, error);
  if (error) fs::remove(partial, error);
}

void export_step(const Path& from, const Path& to) {
  std::error_code error;
  fs::create_directories(to / kSmallFiles, error);
  // Copies the shard lists after the shards, because the list marks a rank's part as complete.
  std::vector<Path> paths = entries_of(from);
  std::sort(paths.begin(), paths.end(), [](const Path& a, const Path& b) {
    return std::pair(a.extension() == ".json", a) < std::pair(b.extension() == ".json", b);
  });
  for (const Path& file : paths)
    if (fs::is_regular_file(file, error)) export_file(file, to / file.filename());
  for (const Path& file : entries_of(from / kSmallFiles))
    export_file(file, to / kSmallFiles / file.filename());
}

Outcome<int> num_writers_of(const Path& step_folder) {
  const Outcome<std::string> content = read_file(step_folder / kWriters, Bytes(64));
  if (!content) return tl::unexpected(content.error());
  int count = 0;
  const auto [end, error] = std::from_chars(content->data(), content->data() + content->size(), count);
  if (error != std::errc() || end != content->data() + content->size() || count < 1 ||
      count > kMaxStoringRanks)
    return failure("{}: not a number of writers", (step_folder / kWriters).string());
  return count;
}

Outcome<void> commit_exported(FileSystem& files, const Path& run, std::int64_t step, const Path& from) {
  const Outcome<int> num_writers = num_writers_of(from);
  if (!num_writers) return tl::unexpected(num_writers.error());
  CommitOptions options{.num_writers = *num_writers, .files = {}};
  for (const Path& file : entries_of(from / kSmallFiles)) {
    if (file.extension() == ".part") continue;
    Outcome<std::string> content = read_file(file, Bytes(1 << 26));
    if (!content) return tl::unexpected(content.error());
    options.files.push_back({file.filename().string(), std::move(*content)});
  }
  std::error_code error;
  if (!fs::exists(from / kSmallFiles / kTrainingStateFile, error))
    return failure("no host has all files for this step");
  const Outcome<Path> folder = begin_checkpoint(files, run, step);
  if (!folder) return tl::unexpected(folder.error());
  for (const Path& file : entries_of(from))
    if (starts_with(file.filename().string(), "rank-") && file.extension() != ".part")
      fs::rename(file, *folder / file.filename(), error);
  const Outcome<Path> checkpoint = commit_checkpoint(files, *folder, options);
  if (!checkpoint) abandon_checkpoint(files, *folder);
  return checkpoint ? Outcome<void>() : tl::unexpected(checkpoint.error());
}

}  // namespace

std::vector<int> storing_ranks(const Plan& plan) {
  std::vector<int> ranks;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      ranks.insert(ranks.end(), stage.devices.begin(), stage.devices.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

HostMemory HostMemory::for_ranks(const std::vector<int>& storing) const {
  HostMemory result{folder, {}, storing};
  for (const int rank : storing) result.host_of.push_back(host_of.at(static_cast<std::size_t>(rank)));
  return result;
}

HostMemory HostMemory::for_workers(const std::vector<int>& worker_ids) const {
  HostMemory result = for_ranks(worker_ids);
  result.ranks.clear();
  return result;
}

int HostMemory::num_hosts() const {
  return host_of.empty() ? 0 : *std::max_element(host_of.begin(), host_of.end()) + 1;
}

bool HostMemory::is_first_of_host(int writer) const {
  const int host = host_of.at(static_cast<std::size_t>(writer));
  return std::find(host_of.begin(), host_of.end(), host) - host_of.begin() == writer;
}

Path HostMemory::step_folder(int writer, std::int64_t step) const {
  return folder / fmt::format("host-{}", host_of.at(static_cast<std::size_t>(writer))) /
         fmt::format("step-{}.tmp-part", step);
}

// The writers on a host are assigned round-robin to the writers on the next host.
std::optional<int> HostMemory::copy_holder_of(int writer) const {
  const int host = host_of.at(static_cast<std::size_t>(writer));
  const auto index_on_host = std::count(host_of.begin(), host_of.begin() + writer, host);
  std::vector<int> copy_holders;
  for (int step = 1; step < num_hosts() && copy_holders.empty(); ++step)
    for (int candidate = 0; candidate < num_writers(); ++candidate)
      if (host_of[static_cast<std::size_t>(candidate)] == (host + step) % num_hosts())
        copy_holders.push_back(candidate);
  if (copy_holders.empty()) return std::nullopt;
  return copy_holders.at(static_cast<std::size_t>(index_on_host) % copy_holders.size());
}

std::vector<int> HostMemory::copied_by(int writer) const {
  std::vector<int> result;
  for (int candidate = 0; candidate < num_writers(); ++candidate)
    if (copy_holder_of(candidate) == writer) result.push_back(candidate);
  return result;
}

Bytes HostMemory::bytes_on_host(int host, Bytes state) const {
  int num_kept_steps = 0;
  for (int writer = 0; writer < num_writers(); ++writer) {
    const auto copy_holder = copy_holder_of(writer);
    num_kept_steps += host_of[static_cast<std::size_t>(writer)] == host;
    num_kept_steps += copy_holder && host_of[static_cast<std::size_t>(*copy_holder)] == host;
  }
  return Bytes(static_cast<std::int64_t>(static_cast<double>(state.value) * num_kept_steps / num_writers()));
}

namespace {

void write_list(FileSystem& files, const Path& run, const HostMemory& memory) {
  const Json document = {
      {"run", memory_owner(run)}, {"folder", memory.folder.string()}, {"hosts", memory.host_of}};
  value_or_throw(write_atomically(files, run / kMemoryFile, document.dump(2) + "\n"));
}

}  // namespace

HostMemory announce_host_memory(FileSystem& files, const Path& run, const Path& base,
                                std::vector<int> host_of) {
  HostMemory memory{fs::absolute(base) / (std::string(kMemoryName) + generate_token()), std::move(host_of)};
  // Reuses the previous folder, so that files that the run has left there on other hosts are also removed
  // later.
  if (const auto before = find_host_memory(run); before && before->folder.parent_path() == fs::absolute(base))
    memory.folder = before->folder;
  write_list(files, run, memory);
  return memory;
}

void write_hosts(FileSystem& files, const Path& run, const std::vector<int>& host_of) {
  if (const std::optional<HostMemory> memory = find_host_memory(run))
    write_list(files, run, {memory->folder, host_of});
}

std::optional<HostMemory> find_host_memory(const Path& run) {
  std::error_code error;
  if (!fs::exists(run / kMemoryFile, error)) return std::nullopt;
  const Json document = read_json(run / kMemoryFile);
  const JsonView view(document, (run / kMemoryFile).string());
  const auto hosts = view.find("hosts");
  HostMemory memory{view.at("folder").text(), {}};
  if (!hosts || view.at("run").text() != memory_owner(run) ||
      !starts_with(memory.folder.filename().string(), kMemoryName))
    return std::nullopt;
  for (const JsonView& host : hosts->elements())
    memory.host_of.push_back(static_cast<int>(host.integer(0, kMaxStoringRanks)));
  // Every host must have a rank. Otherwise no rank could store copies there.
  std::vector<bool> is_present(memory.host_of.size());
  for (const int host : memory.host_of) {
    if (host >= static_cast<int>(is_present.size()))
      hosts->refuse("consecutive host numbers that start at 0");
    is_present[static_cast<std::size_t>(host)] = true;
  }
  for (int host = 0; host < memory.num_hosts(); ++host)
    if (!is_present[static_cast<std::size_t>(host)]) hosts->refuse("at least one rank on every host");
  if (memory.host_of.empty()) hosts->refuse("a host for each rank");
  return memory;
}

void make_memory_folder(const HostMemory& memory) {
  // The check below detects a folder that was created by another user.
  if (::mkdir(memory.folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw RuntimeFailure("--memory-folder {}: cannot create a folder there: {}",
                         memory.folder.parent_path().string(), std::strerror(errno));
  if (!is_own_folder(memory.folder))
    throw UserError("{} is not a folder that only this user can access; choose another --memory-folder",
                    memory.folder.string());
}

void open_host_memory(const HostMemory& memory, int rank, Bytes checkpoint_bytes) {
  make_memory_folder(memory);
  if (!memory.is_first_of_host(rank)) return;
  remove_inside(memory.folder);
  check_space(memory.folder.parent_path(), {checkpoint_bytes});
}

void remove_exported(const Path& run) {
  std::error_code error;
  fs::remove_all(run / kExportFolder, error);
}

void remove_steps(const HostMemory& memory) {
  if (is_own_folder(memory.folder)) remove_inside(memory.folder);
}

Outcome<void> write_step_files(FileSystem& files, const Path& step_folder,
                               const std::vector<SmallFile>& small_files, int num_writers) {
  if (Outcome<void> created = files.create_folders(step_folder / kSmallFiles); !created) return created;
  for (const SmallFile& file : small_files)
    if (Outcome<void> outcome = write_atomically(files, step_folder / kSmallFiles / file.name, file.content);
        !outcome)
      return outcome;
  return write_atomically(files, step_folder / kWriters, std::to_string(num_writers));
}

void remove_steps_before(const Path& step_folder) {
  const auto newest = step_of(step_folder);
  std::error_code error;
  for (const Path& entry : entries_of(step_folder.parent_path()))
    if (const auto step = step_of(entry); step && newest && *step < *newest) fs::remove_all(entry, error);
}

void remove_host_memory(const HostMemory& memory) {
  std::error_code error;
  if (is_own_folder(memory.folder)) fs::remove_all(memory.folder, error);
}

void remove_host_memory(const Path& run, bool with_list) {
  std::error_code error;
  try {
    if (const auto memory = find_host_memory(run)) remove_host_memory(*memory);
  } catch (const ReportedError&) {  // the location is unknown
  }
  if (with_list) fs::remove(run / kMemoryFile, error);
}

void export_host_memory(const Path& run) {
  const auto memory = find_host_memory(run);
  if (!memory || !is_own_folder(memory->folder)) return;
  const std::optional<CheckpointEntry> in_files = newest_complete(run);
  for (const Path& host : entries_of(memory->folder))
    for (const Path& folder : entries_of(host))
      if (const auto step = step_of(folder); step && (!in_files || in_files->step < *step))
        export_step(folder, run / kExportFolder / folder.filename());
}

std::optional<std::int64_t> commit_host_memory(FileSystem& files, const Path& run) {
  const auto memory = find_host_memory(run);
  std::map<std::int64_t, Path> steps;
  for (const Path& folder : entries_of(run / kExportFolder))
    if (const auto step = step_of(folder)) steps[*step] = folder;
  std::optional<std::int64_t> committed_step;
  for (auto step = steps.rbegin(); step != steps.rend() && memory && !committed_step; ++step)
    if (commit_exported(files, run, step->first, step->second)) committed_step = step->first;
  remove_exported(run);
  return committed_step;
}

}  // namespace optimus
