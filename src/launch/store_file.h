// RUN/logs/store.json: where a process that joins a run finds its store, and the token that lets it in. Only the run's user may read it.
// Pure.
#pragma once

#include "base/file.h"
#include "store/key_store.h"

namespace optimus {

struct RunStorePlace {
  StorePlace place;
  std::string prefix{};   // before all keys of the run
  bool may_move = false;  // another process hosts it when this one is gone (launched_seat.h)
};

// Written by whoever hosts the store, and removed with this object, unless another has written one since. Throws UserError.
class StoreFile {
 public:
  StoreFile(const Path& run, const RunStorePlace& where);
  ~StoreFile();
  StoreFile(const StoreFile&) = delete;
  // The run goes on, and will be hosted by another: it is not removed.
  void leave() { is_left_ = true; }

 private:
  const Path path_;
  const std::string text_;
  bool is_left_ = false;
};
// Whether there is one; it may be of a process that was killed.
bool has_store_file(const Path& run);
// Of a host that is gone, by who knows that nobody hosts the run.
void remove_store_file(const Path& run);

// Throws UserError when nobody can join the run: it has ended, or keeps its workers (--static).
RunStorePlace read_store_file(const Path& run);

}  // namespace optimus
