// RUN/logs/store.json: the address of the run's store for processes that join, and the token that admits
// them. Only the run's user can read it. Pure.
#pragma once

#include "base/file.h"
#include "store/key_store.h"

namespace optimus {

struct RunStoreAddress {
  StoreAddress address;
  std::string prefix{};   // prepended to all keys of the run
  bool may_move = false;  // another process takes over the store if its host is lost (elastic_rank.h)
};

// The file is written by the process that hosts the store, and removed by the destructor unless another
// process has replaced it. Throws RuntimeFailure.
class StoreFile {
 public:
  StoreFile(const Path& run, const RunStoreAddress& store_address);
  ~StoreFile();
  StoreFile(const StoreFile&) = delete;
  // Keeps the file, because the run continues and another process will host it.
  void release() { is_left_ = true; }

 private:
  const Path path_;
  const std::string text_;
  bool is_left_ = false;
};
// Whether the file exists; it may belong to a process that was killed.
bool has_store_file(const Path& run);
// Removes the file of a lost host. The caller must know that no process hosts the run.
void remove_store_file(const Path& run);

// Throws UserError if joining is impossible: the run has ended, or does not accept workers (--static).
RunStoreAddress read_store_file(const Path& run);

}  // namespace optimus
