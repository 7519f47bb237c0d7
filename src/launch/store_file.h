// RUN/logs/store.json contains the address of the run's store and the access token, for processes that
// join. Only the user who owns the run can read it.
#pragma once

#include "base/file.h"
#include "store/key_store.h"

namespace optimus {

struct RunStoreAddress {
  StoreAddress address;
  std::string prefix{};   // prepended to all keys of the run
  bool may_move = false;  // another process takes over the store if its host is lost (elastic_rank.h)
};

// The process that hosts the store writes the file. The destructor removes it unless another process has
// replaced it. Throws RuntimeFailure if the file cannot be written.
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
// Whether the file exists. It may have been left behind by a process that was killed.
bool has_store_file(const Path& run);
// Removes the file of a lost host. The caller must know that no process hosts the run.
void remove_store_file(const Path& run);

// Throws UserError if it is not possible to join, because the run has ended or does not accept workers
// (--static).
RunStoreAddress read_store_file(const Path& run);

}  // namespace optimus
