// Implements `optimus profile --links`. It measures the network between the hosts on which a launcher started
// ranks, and describes the hosts as a HardwareProfile. This process is one of the ranks. Rank 0 collects the
// measurements of all pairs of hosts (measure_links.h) and adds the devices, either as measured on its
// machine or from the shipped device types.
#pragma once

#include <optional>

#include "base/event.h"
#include "base/stop_token.h"
#include "cluster/launcher.h"
#include "launch/measure_links.h"
#include "settings/probe_options.h"

namespace optimus {

struct ClusterProfile {
  HardwareProfile hardware;
  std::vector<ProbedHost> hosts;
  std::vector<PairTimes> pairs;  // including failed ones
  double seconds = 0;            // duration of the measurement
};

struct ClusterProbe {
  LaunchInfo launch;
  const ProbeOptions& options;
  EventSink& events;
  StopToken stop{};
};

// Returns the profile on rank 0, and nullopt on all other ranks. Throws ReportedError if there is no
// launcher, if all ranks are on one host, or if a host cannot be reached. Throws RankRefused (rendezvous.h)
// on the other ranks if rank 0 has reported the reason.
std::optional<ClusterProfile> probe_cluster(const ClusterProbe& probe);

}  // namespace optimus
