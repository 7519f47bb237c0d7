// The copies that ranks keep of each other's parts of a step (host_memory.h): files that a rank has written into its host's memory go over
// the run's connections to a rank of the next host, which writes them into its own. All ranks at the same place of their program.
#pragma once

#include "base/error.h"
#include "comm/comm.h"
#include "elastic/host_memory.h"

namespace optimus {

// writer: this rank's number. has_part: whether its files are there; else its keeper is told that they are not. Fails when this rank could
// not write what it keeps for others, or one of those had nothing. Throws PeersLost.
struct CopiedStep {
  const HostMemory& memory;
  int writer = 0;
  Path folder;
  bool has_part = false;
};
Outcome<void> exchange_copies(Comm& comm, const CopiedStep& step, FileSystem& files, Seconds patience);

}  // namespace optimus
