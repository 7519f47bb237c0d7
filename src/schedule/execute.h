// Runs programs without doing anything: who would start what when, if each instruction took the time it is given.
//
// This is the meaning of a program in its shortest form. Lanes are in order, waits are kept, collectives start when
// their last member arrives, a message when both sides have reached it. Because these rules only ever add up to a graph
// of what must come before what, either the graph has no circle and the programs end under any timing, or they can hang
// under every timing, and the failure names a circle. The simulator adds links and interference to it.
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

// Durations must not be negative; partners of a message or collective take the longest of theirs. Fails when the
// programs do not fit together (a message without partner, a group without a member's program) or wait in a circle.
Outcome<Timeline> execute(const std::vector<Program>& programs, const DurationOf& duration);

}  // namespace optimus
