// This machine as a HardwareProfile: its devices, how fast the engine's kernels are on them, its memory and links.
// `optimus profile --hardware` measures it, `--cluster here` names it.
#pragma once

#include <vector>

#include "base/event.h"
#include "cluster/hardware.h"
#include "engine/probe_links.h"
#include "settings/probe_options.h"

namespace optimus {

struct MachineProfile {
  HardwareProfile hardware;
  std::vector<CollectiveTime> collectives;  // on processors, over `idle_link`
  LinkSpec idle_link;                       // the loopback interface, while nobody computes
  int threads = 0;
};

// Throws UserError.
MachineProfile probe_machine(const ProbeOptions& options, EventSink& events);

}  // namespace optimus
