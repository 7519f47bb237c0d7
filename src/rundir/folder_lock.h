// One process at a time trains in a run's folder: two would remove each other's saves. The lock ends with the process, however
// that ends.
#pragma once

#include "base/file.h"

namespace optimus {

class FolderLock {
 public:
  FolderLock() = default;  // of nothing
  // Makes the folder where there is none. Throws UserError when another process holds it.
  static FolderLock take(const Path& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();
  bool is_held() const { return file_ >= 0; }
  // Whether a process holds it; false where there is no such folder.
  static bool is_taken(const Path& folder);

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_ = -1;
};

}  // namespace optimus
