// Communication between ranks that are threads of one process: for tests, and for several ranks on one GPU.
// Equivalent to c10d_comm.h without connections: same operations, same failures, bitwise equal results.
//
//   ThreadWorld world(4);
//   std::jthread rank_2([comm = world.comm(2)] { … });
//
// Works on CPUs and on CUDA; each rank may have its own stream. A rank whose Comm is destroyed has left:
// operations of ranks that wait for it fail at once. Under ThreadSanitizer, all memory accesses are reported
// to the sanitizer.
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
  // Creates the Comm of a rank; called once per rank. It may outlive the world. All ranks are members at
  // first; after Comm::change_membership `rank` means the worker id.
  std::unique_ptr<Comm> comm(int rank);

 private:
  std::shared_ptr<ThreadWorldState> state_;  // shared with each rank's Comm and with operations in flight
};

}  // namespace optimus
