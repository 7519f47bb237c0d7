// Implements rendezvous_file.h.
#include "launch/rendezvous_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "rundir/private_file.h"

namespace optimus {
namespace {

Path own_folder(const Environment& environment) {
  if (const auto folder = environment("XDG_RUNTIME_DIR")) {
    struct stat folder_stat {};
    if (::stat(folder->c_str(), &folder_stat) == 0 && S_ISDIR(folder_stat.st_mode) &&
        folder_stat.st_uid == ::geteuid() && ::access(folder->c_str(), W_OK) == 0)
      return *folder;
  }
  const Path folder = fmt::format("/tmp/optimus-{}", ::geteuid());
  ::mkdir(folder.c_str(), 0700);
  struct stat folder_stat {};
  // Uses lstat() so that a symbolic link created by another user is not followed.
  if (::lstat(folder.c_str(), &folder_stat) != 0 || !S_ISDIR(folder_stat.st_mode) ||
      folder_stat.st_uid != ::geteuid() || (folder_stat.st_mode & 077) != 0)
    throw UserError(
        "{}: expected a folder that only you can access (mode 700), because ranks on this machine use it to "
        "find each other",
        folder.string());
  return folder;
}

constexpr Bytes kMaxRendezvousFileBytes{1 << 12};

// Process ids can be compared only within a "pid" namespace, and ports of the loopback interface only within
// a "net" namespace.
std::string own_namespace(const std::string& kind) {
  char name[64] = {};
  return ::readlink(("/proc/self/ns/" + kind).c_str(), name, sizeof name - 1) > 0 ? name : "";
}

// Whether the file was left behind by a rank 0 that was killed.
bool is_stale(const Path& path) {
  const Outcome<std::string> text = read_file(path, kMaxRendezvousFileBytes);
  if (!text) return false;
  try {
    const Json json = parse_json(*text, path.string());
    const JsonView view(json, path.string());
    const auto process = view.find("process"), space = view.find("space");
    if (!process || !space || space->text().empty() || space->text() != own_namespace("pid")) return false;
    return ::kill(static_cast<pid_t>(process->integer(1, INT32_MAX)), 0) != 0 && errno == ESRCH;
  } catch (const UserError&) {
    return false;
  }
}

void remove_stale_files(const Path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (starts_with(name, "optimus-") && ends_with(name, ".json") && is_stale(at->path()))
      ::unlink(at->path().c_str());
  }
}

}  // namespace

Path rendezvous_file(const Environment& environment, const std::string& job) {
  const RandomKey key = RandomKey(0).derive(job).derive(own_namespace("net"));
  return own_folder(environment) / fmt::format("optimus-{:016x}.json", key.value);
}

RendezvousFile::RendezvousFile(Path path, const RendezvousAddress& address)
    : path_(std::move(path)), address_(address) {
  const Json document = {{"port", address.port},
                         {"token", address.token},
                         {"process", ::getpid()},
                         {"space", own_namespace("pid")}};
  remove_stale_files(path_.parent_path());
  write_private_file(path_, document.dump() + "\n");
}

// Removes the file only if it is unchanged, because another run with the same name may have started already.
RendezvousFile::~RendezvousFile() {
  const auto current = read_rendezvous_file(path_);
  if (current && current->port == address_.port && current->token == address_.token) ::unlink(path_.c_str());
}

std::optional<RendezvousAddress> read_rendezvous_file(const Path& path) {
  const Outcome<std::string> text = read_file(path, kMaxRendezvousFileBytes);
  if (!text) return std::nullopt;
  try {
    const Json json = parse_json(*text, path.string());
    const JsonView view(json, path.string());
    return RendezvousAddress{static_cast<int>(view.at("port").integer(1, 65535)), view.at("token").text()};
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace optimus
