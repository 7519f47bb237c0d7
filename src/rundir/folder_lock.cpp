// Implements folder_lock.h.
#include "rundir/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace optimus {

FolderLock FolderLock::take(const Path& folder) {
  RealFileSystem files;
  value_or_throw(files.create_folders(folder));
  const Path path = folder / ".lock";
  FolderLock lock(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  if (!lock.is_held()) throw RuntimeFailure("cannot open {}: {}", path.string(), std::strerror(errno));
  if (::flock(lock.file_, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK)
    throw UserError("another process is training in {}; wait until it exits, or stop it first",
                    folder.string());
  return lock;  // a file system without locks: continue unprotected
}

bool FolderLock::is_taken(const Path& folder) {
  const FolderLock lock(::open((folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC));
  return lock.is_held() && ::flock(lock.file_, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

FolderLock::FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}
FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace optimus
