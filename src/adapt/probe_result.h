// A probe: a measurement of all machines while training pauses between two steps (switching/probe.h). Plain
// data.
#pragma once

#include <vector>

namespace optimus {

// The measurements that a probe should take. Training pauses during a probe, so a request should contain only
// what is needed.
struct ProbeRequest {
  bool speeds = false;    // the network of each node against several others, and the speed of each device
  bool messages = false;  // point-to-point messages of each node with one other
  bool ring = false;      // an all-reduce over all ranks in host memory
  bool operator==(const ProbeRequest&) const = default;
};

struct ProbeResult {
  std::vector<double> network{};  // [node]: seconds per byte with its fastest peer; 0 if not measured
  std::vector<double> bytes{};    // [node]: size of the measured message
  // [rank]: seconds for a matmul of the same size on all ranks; empty if not measured.
  std::vector<double> devices{};
  // Size and duration of the all-reduce over all ranks; 0 if not measured.
  double ring_bytes = 0, ring_seconds = 0;
  bool operator==(const ProbeResult&) const = default;
};

// Divides each value by the median of the measured values (those above 0). Returns an empty vector if fewer
// than three values were measured, because two values do not show which of them is slow.
std::vector<double> slowdowns(const std::vector<double>& seconds);

}  // namespace optimus
