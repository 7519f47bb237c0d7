// How ranks of a launcher gather (gathering.h), with what a process of ours has: its environment, and torchrun's own store through comm/.
#pragma once

#include <functional>

#include "base/file.h"
#include "launch/gathering.h"

namespace optimus {

struct LaunchedGathering {
  LaunchInfo launch;
  Path token_file{};    // empty: OPTIMUS_TOKEN, if that is set
  std::string store{};  // etcd://host:port; empty: one of ours
  std::function<bool()> is_interrupted;
  Seconds patience;
};
// Waits throw Interrupted when that is so.
GatheringOptions gathering_options(const LaunchedGathering& how);

}  // namespace optimus
