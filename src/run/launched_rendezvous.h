// Options for the rendezvous of ranks started by a launcher (rendezvous.h): adds the environment of this
// process and access to torchrun's own store.
#pragma once

#include "base/file.h"
#include "base/stop_token.h"
#include "launch/rendezvous.h"

namespace optimus {

struct LaunchedRendezvous {
  LaunchInfo launch;
  Path token_file{};    // if empty, the token is $OPTIMUS_TOKEN, if set
  std::string store{};  // etcd://host:port; if empty, rank 0 hosts a store
  StopToken stop{};
  Seconds timeout;
};
// Waits throw Interrupted once `stop` is requested.
RendezvousOptions rendezvous_options(const LaunchedRendezvous& settings);

}  // namespace optimus
