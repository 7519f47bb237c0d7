// Exchanges copies of each rank's part of an in-memory checkpoint (host_memory.h): the files that a rank
// has written to its host's memory are sent to a rank on the next host, which writes them to its own
// memory. All ranks must call this at the same point of their programs.
#pragma once

#include "base/error.h"
#include "comm/comm.h"
#include "elastic/host_memory.h"

namespace optimus {

// `writer` is this rank's writer index. `has_part` is false if this rank could not write its files; the rank
// that stores its copies is then informed. Fails if this rank could not write a copy, or if a rank whose
// copies it stores had no files. Throws PeersLost.
struct CopiedStep {
  const HostMemory& memory;
  int writer = 0;
  Path folder;
  bool has_part = false;
};
Outcome<void> exchange_copies(Comm& comm, const CopiedStep& step, FileSystem& files, Seconds timeout);

}  // namespace optimus
