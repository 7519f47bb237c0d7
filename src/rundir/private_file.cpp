// Implements private_file.h.
#include "rundir/private_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace optimus {

void write_private_file(const Path& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}", path.string(), ::getpid());
  ::unlink(temporary.c_str());  // may have been left by an earlier process with the same id
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool is_written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int reason = errno;
  if (file >= 0) ::close(file);
  if (!is_written || ::rename(temporary.c_str(), path.c_str()) != 0)
    throw RuntimeFailure("cannot write {}: {}", path.string(), std::strerror(is_written ? errno : reason));
}

}  // namespace optimus
