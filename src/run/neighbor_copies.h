// Exchanges copies of each rank's part of an in-memory checkpoint (host_memory.h). Each rank sends the files
// that it has written to its host's memory to a rank on the next host, which writes them to that host's
// memory. All ranks must call exchange_copies() at the same point.
#pragma once

#include "base/error.h"
#include "comm/comm.h"
#include "elastic/host_memory.h"

namespace optimus {

// `writer` is this rank's writer index. `has_part` is false if this rank could not write its files, in which
// case the rank that stores its copies is informed. exchange_copies() fails if this rank could not write a
// copy, or if a rank whose copies it stores had no files. Throws PeersLost.
struct CopiedStep {
  const HostMemory& memory;
  int writer = 0;
  Path folder;
  bool has_part = false;
};
Outcome<void> exchange_copies(Comm& comm, const CopiedStep& step, FileSystem& files, Seconds timeout);

}  // namespace optimus
