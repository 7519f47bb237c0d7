// Measures this machine as a HardwareProfile: its devices, the speed of the engine's kernels on them, its
// memory and its links. `optimus profile --hardware` runs the measurement, and `--cluster here` uses the
// result.
#pragma once

#include <vector>

#include "base/event.h"
#include "cluster/hardware.h"
#include "engine/probe_links.h"
#include "settings/probe_options.h"

namespace optimus {

struct MachineProfile {
  HardwareProfile hardware;
  std::vector<CollectiveTime> collectives;  // only on CPUs; measured over `idle_link`
  LinkSpec idle_link;                       // the loopback interface, while no worker computes
  int threads = 0;
};

// Throws ReportedError.
MachineProfile probe_machine(const ProbeOptions& options, EventSink& events);

}  // namespace optimus
