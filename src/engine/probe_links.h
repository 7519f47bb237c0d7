// The link probe measures the connections between devices. It covers messages between processes on this
// machine (through loopback sockets, which Gloo uses), copies between a GPU and its host and between GPUs,
// and an all-reduce over several members.
#pragma once

#include <vector>

#include "base/event.h"
#include "cluster/hardware.h"
#include "engine/device.h"

namespace optimus {

// Measures messages between two threads over the loopback interface. Throws RuntimeFailure if the interface
// cannot be used.
LinkSpec probe_loopback(EventSink& events);

// Measures gathers between two workers on this machine while they compute, using the communication layer of
// training runs. Throws UserError if the communication fails.
LinkSpec probe_workers(EventSink& events);

// Measures copies from host memory to a GPU, or between two GPUs.
LinkSpec probe_copies(at::Device from, at::Device to, EventSink& events);

// The time of a ring all-reduce of `bytes` bytes of fp32 numbers between `members` threads over the loopback
// interface.
struct CollectiveTime {
  int members = 0;
  double bytes = 0, seconds = 0;
};
std::vector<CollectiveTime> probe_all_reduce(EventSink& events);

}  // namespace optimus
