// The probe's other half: what joins devices. Messages between processes of this machine (sockets of the loopback interface, which
// Gloo uses), copies between a GPU and its host and between GPUs, and a sum over several members.
#pragma once

#include <vector>

#include "base/event.h"
#include "cluster/hardware.h"
#include "engine/device.h"

namespace optimus {

// Between two threads over the loopback interface. Throws UserError when it cannot be used.
LinkSpec probe_loopback(EventSink& events);

// Between two workers of this machine while they compute, through the run's own communication. Throws UserError.
LinkSpec probe_workers(EventSink& events);

// From the host's memory to the device; between two devices.
LinkSpec probe_copies(at::Device from, at::Device to, EventSink& events);

// A ring all-reduce of fp32 between that many threads over the loopback interface: seconds.
struct CollectiveTime {
  int members = 0;
  double bytes = 0, seconds = 0;
};
std::vector<CollectiveTime> probe_all_reduce(EventSink& events);

}  // namespace optimus
