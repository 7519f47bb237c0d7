// `optimus profile --links`: the hosts of a launcher's ranks as a HardwareProfile. This process is one of the ranks; rank 0 collects
// what pairs of hosts have measured (measure_links.h) and knows the devices: as this machine was measured before, or as it is shipped.
#pragma once

#include <functional>
#include <optional>

#include "base/event.h"
#include "cluster/launcher.h"
#include "launch/measure_links.h"
#include "settings/probe_options.h"

namespace optimus {

struct ClusterProfile {
  HardwareProfile hardware;
  std::vector<ProbedHost> hosts;
  std::vector<PairTimes> pairs;  // failed ones, too
  double seconds = 0;            // that measuring took
};

struct ClusterProbe {
  LaunchInfo launch;
  const ProbeOptions& options;
  EventSink& events;
  std::function<bool()> is_interrupted;
};

// On rank 0; nothing on the others. Throws UserError: no launcher, all ranks on one host, a host that nobody reaches; and RankRefused
// (gathering.h) on the others when rank 0 has said why.
std::optional<ClusterProfile> probe_cluster(const ClusterProbe& probe);

}  // namespace optimus
