// The link probe: measures the connections between devices. It covers messages between processes of this
// machine (sockets of the loopback interface, which Gloo uses), copies between a GPU and its host and
// between GPUs, and an all-reduce over several members.
#pragma once

#include <vector>

#include "base/event.h"
#include "cluster/hardware.h"
#include "engine/device.h"

namespace optimus {

// Measures messages between two threads over the loopback interface. Throws RuntimeFailure if it cannot be
// used.
LinkSpec probe_loopback(EventSink& events);

// Measures gathers between two workers of this machine while they compute, through the communication of a
// training run. Throws UserError if the communication fails.
LinkSpec probe_workers(EventSink& events);

// Measures copies from host memory to a GPU, or between two GPUs.
LinkSpec probe_copies(at::Device from, at::Device to, EventSink& events);

// Time of a ring all-reduce of `bytes` bytes of fp32 numbers between `members` threads over the loopback
// interface.
struct CollectiveTime {
  int members = 0;
  double bytes = 0, seconds = 0;
};
std::vector<CollectiveTime> probe_all_reduce(EventSink& events);

}  // namespace optimus
