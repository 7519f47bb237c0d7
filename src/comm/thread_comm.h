// Communication between ranks that are threads of one process. Used in tests, and when several ranks share
// one GPU. Equivalent to c10d_comm.h but without connections: it has the same operations and failures, and
// its results are bitwise equal.
//
//   ThreadWorld world(4);
//   std::jthread rank_2([comm = world.comm(2)] { … });
//
// Works on CPUs and on CUDA; each rank may have its own stream. A rank leaves the world when its Comm is
// destroyed. Operations that wait for it then fail at once. Under ThreadSanitizer, all memory accesses are
// reported to the sanitizer.
#pragma once

#include <memory>

#include "comm/comm.h"

namespace optimus {

struct ThreadWorldState;

class ThreadWorld {
 public:
  explicit ThreadWorld(int num_ranks);
  ~ThreadWorld();
  int size() const;
  // Creates the Comm of a rank. Called once per rank. The Comm may outlive the world. Initially all ranks are
  // members. After Comm::change_membership(), `rank` is the worker id.
  std::unique_ptr<Comm> comm(int rank);

 private:
  std::shared_ptr<ThreadWorldState> state_;  // shared with each rank's Comm and with operations in flight
};

}  // namespace optimus
