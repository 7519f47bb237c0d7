// Allows only one process at a time to train in a run's folder, because two processes would remove each
// other's checkpoints. The lock is released when its process exits, even if the process is killed.
#pragma once

#include "base/file.h"

namespace optimus {

class FolderLock {
 public:
  FolderLock() = default;  // holds no lock
  // Creates the folder if it does not exist. Throws UserError if another process holds the lock.
  static FolderLock take(const Path& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();
  bool is_held() const { return file_ >= 0; }
  // Whether a process holds the lock. Returns false if the folder does not exist.
  static bool is_taken(const Path& folder);

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_ = -1;
};

}  // namespace optimus
