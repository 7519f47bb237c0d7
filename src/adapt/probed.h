// What was measured of all machines at once while they stood still (elastic/probe.h). Plain data.
#pragma once

#include <vector>

namespace optimus {

struct Probed {
  std::vector<double>
      network{};                // [node]: seconds a byte, in the quickest of its pairs; 0: it has met nobody
  std::vector<double> bytes{};  // [node]: of that message
  std::vector<double> devices{};  // [rank]: seconds of a product that is the same for all
  // A sum over all ranks; 0: none was asked for.
  double ring_bytes = 0, ring_seconds = 0;
  bool operator==(const Probed&) const = default;
};

}  // namespace optimus
