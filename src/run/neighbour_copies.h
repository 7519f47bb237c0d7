// The copies that ranks keep of each other's parts of a step (host_memory.h): files that a rank has written into its host's memory go over
// the run's connections to a rank of the next host, which writes them into its own. All ranks at the same place of their program.
#pragma once

#include "base/error.h"
#include "comm/comm.h"
#include "run/host_memory.h"

namespace optimus {

// has_part: whether this rank's files are there; else its keeper is told that they are not. Fails when this rank could not write what it
// keeps for others, or one of those had nothing. Throws PeersLost.
Outcome<void> exchange_copies(Comm& comm, const HostMemory& memory, const Path& step_folder, bool has_part,
                              FileSystem& files, Seconds patience);

}  // namespace optimus
