// Executes programs abstractly: computes when each instruction would start and end, given its duration.
//
// This is the shortest definition of the semantics of programs. Lanes run in order, waits are respected, a
// collective starts when its last member reaches it, and a message starts when both sides have reached it.
// These rules define a dependency graph. Either the graph has no cycle and the programs terminate under any
// timing, or they deadlock under every timing, and the error names a cycle. The simulator additionally
// models links and interference.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "schedule/program.h"

namespace optimus {

struct Timeline {
  struct Time {
    double start = 0, end = 0;
  };
  std::vector<std::vector<Time>> times;  // [program][instruction]
  double length = 0;
};

using DurationOf = std::function<double(const Program& program, const Instruction& instruction)>;

// `duration` must not return negative values. A collective takes the longest duration of its members, and a
// message takes the longer duration of its two sides. Fails if the programs do not match (a message without a
// partner, or a group that contains a device without a program) or wait in a cycle.
Outcome<Timeline> execute(const std::vector<Program>& programs, const DurationOf& duration);

}  // namespace optimus
