// Replays: the training progress of different systems on the same trace of lost and joining nodes.
//
//   System::oobleck   templates; a short halt at every loss; a new node is used after the next loss
//   System::varuna    checkpoints; a restart at every loss
//   System::bamboo    neighbors also compute each other's layers; losses slow it down but rarely restart it
//   System::ours      templates; immediate detection of losses; new nodes join between two steps
//
// The input for each system is its throughput by number of nodes and the costs of its plan changes. The first
// three replays follow the published simulators of those systems. StepCounting selects whether the artifacts
// of that code (listed in docs/understand/recovery.md) are reproduced. Internally, times are integer ticks,
// by default milliseconds, as in those simulators. No side effects.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trials/replay_case.h"

namespace optimus {

enum class System { oobleck, varuna, bamboo, ours };
std::string text(System system);
std::vector<std::string> system_words();
System parse_system(std::string_view word, const std::string& setting_name);  // throws UserError

ReplayOutcome replay(System system, const ReplayCase& replay_case);

// Returns the mean over replays of the trace and of copies whose event times are shifted by up to one step.
// Most of the cost of a loss is the step in flight, of which a random fraction is complete. So the result of
// a single replay with a dozen losses has a high variance.
ReplayOutcome mean_replay(System system, const ReplayCase& replay_case, int repeats);

// An ideal run, which always trains at the highest speed that the ready nodes can reach and never loses work.
struct Ideal {
  double samples = 0, seconds = 0;  // seconds: time with enough nodes
};
Ideal ideal_of(const ReplayCase& replay_case);

// Returns a trace with `nodes` nodes and a length of `length` seconds. Every `interval` seconds the next node
// is lost. It returns `absence` seconds later.
AvailabilityTrace periodic_failures(int nodes, double interval, double absence, double length);

}  // namespace optimus
