// Makes the options for the rendezvous of ranks started by a launcher (rendezvous.h). Adds the environment of
// this process and access to torchrun's store.
#pragma once

#include "base/file.h"
#include "base/stop_token.h"
#include "launch/rendezvous.h"

namespace optimus {

struct LaunchedRendezvous {
  LaunchInfo launch;
  Path token_file{};    // if empty, $OPTIMUS_TOKEN is used if set
  std::string store{};  // etcd://host:port; if empty, rank 0 hosts a store
  StopToken stop{};
  Seconds timeout;
};
// Waits of the rendezvous throw Interrupted once `stop` is requested.
RendezvousOptions rendezvous_options(const LaunchedRendezvous& settings);

}  // namespace optimus
