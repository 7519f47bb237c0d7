// See meeting_file.h.
#include "run/meeting_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"

namespace optimus {
namespace {

Path own_folder(const Environment& environment) {
  if (const auto folder = environment("XDG_RUNTIME_DIR")) {
    struct stat about {};
    if (::stat(folder->c_str(), &about) == 0 && S_ISDIR(about.st_mode) && about.st_uid == ::geteuid() &&
        ::access(folder->c_str(), W_OK) == 0)
      return *folder;
  }
  const Path folder = fmt::format("/tmp/optimus-{}", ::geteuid());
  ::mkdir(folder.c_str(), 0700);
  struct stat about {};
  // lstat: a link of somebody else would lead elsewhere.
  if (::lstat(folder.c_str(), &about) != 0 || !S_ISDIR(about.st_mode) || about.st_uid != ::geteuid() ||
      (about.st_mode & 077) != 0)
    throw UserError("{} must be a folder that is yours alone (mode 700): ranks of this machine meet there",
                    folder.string());
  return folder;
}

}  // namespace

Path meeting_file(const Environment& environment, const std::string& job) {
  return own_folder(environment) / fmt::format("optimus-{:016x}.json", RandomKey(0).with(job).value);
}

MeetingFile::MeetingFile(Path path, const MeetingPlace& place) : path_(std::move(path)) {
  const std::string temporary = fmt::format("{}.{}", path_.string(), ::getpid());
  const std::string text = Json{{"port", place.port}, {"token", place.token}}.dump() + "\n";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool is_written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int reason = errno;
  if (file >= 0) ::close(file);
  if (!is_written || ::rename(temporary.c_str(), path_.c_str()) != 0)
    throw UserError("{} cannot be written: {}", path_.string(), std::strerror(is_written ? errno : reason));
}

MeetingFile::~MeetingFile() { ::unlink(path_.c_str()); }

std::optional<MeetingPlace> read_meeting(const Path& path) {
  const Outcome<std::string> text = read_file(path, Bytes(1 << 12));
  if (!text) return std::nullopt;
  try {
    const Json json = parse_json(*text, path.string());
    const JsonView view(json, path.string());
    return MeetingPlace{static_cast<int>(view.at("port").integer(1, 65535)), view.at("token").text()};
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace optimus
