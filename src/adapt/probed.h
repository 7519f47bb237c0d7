// What is measured of all machines at once while they stand still (switching/probe.h). Plain data.
#pragma once

#include <vector>

namespace optimus {

// All stand still meanwhile: only what somebody wants to know.
struct Look {
  bool who_is_slow = false;  // each node with several others, and what each device computes
  bool messages = false;     // each node with one other
  bool ring = false;         // in host memory: a sum over all ranks
  bool operator==(const Look&) const = default;
};

struct Probed {
  std::vector<double>
      network{};                // [node]: seconds a byte, in the quickest of its pairs; 0: it has met nobody
  std::vector<double> bytes{};  // [node]: of that message
  std::vector<double> devices{};  // [rank]: seconds of a product that is the same for all; or none
  // A sum over all ranks; 0: none was asked for.
  double ring_bytes = 0, ring_seconds = 0;
  bool operator==(const Probed&) const = default;
};

}  // namespace optimus
