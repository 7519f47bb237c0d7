// Communication between ranks that are threads of one process: for tests, and for several ranks on one GPU. What c10d_comm.h does
// between processes, without any connection; the operations, their failures and their bits are the same.
//
//   ThreadWorld world(4);
//   std::jthread rank_2([comm = world.comm(2)] { … });
//
// Works on processors and on CUDA; ranks may each have a stream of their own. A rank whose Comm is destroyed has left: whoever
// waits for it fails at once. Under the thread sanitizer all memory that is read and written is announced.
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
  // Of a rank, once. May outlive the world. All ranks are members at first; after Comm::regroup their numbers here are seats.
  std::unique_ptr<Comm> comm(int rank);

 private:
  std::shared_ptr<ThreadWorldState> state_;  // shared: with each rank's Comm and operations under way
};

}  // namespace optimus
