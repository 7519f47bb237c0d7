// Replays: the training progress of systems that respond differently to lost and returning nodes, on the
// same node trace.
//
//   System::oobleck   templates: a short halt at every loss; a new node is used after the next loss
//   System::varuna    checkpoints; a restart at every loss
//   System::bamboo    neighbors also compute each other's layers; losses slow it down but rarely restart it
//   System::ours      templates; immediate detection of losses; new nodes join between two steps
//
// All systems have the same input: the throughput by number of nodes, and the costs of their own plan
// changes. The first three follow their authors' published simulators; StepCounting selects whether the
// artifacts of that code are reproduced (docs/understand/recovery.md lists them). Pure. Internally, times
// are integer ticks, by default milliseconds, as in those simulators.
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

// The mean over several replays: of the trace, and of copies whose event times are shifted by up to a step.
// Most of the cost of a loss is the step in flight. A random fraction of it is complete, so a single replay
// with a dozen losses varies strongly.
ReplayOutcome mean_replay(System system, const ReplayCase& replay_case, int repeats);

// An ideal run, which always trains at the highest speed of the ready nodes and loses nothing.
struct Ideal {
  double samples = 0, seconds = 0;  // seconds: time with enough nodes
};
Ideal ideal_of(const ReplayCase& replay_case);

// A trace of `nodes` nodes and `length` seconds. Every `interval` seconds, the next node is lost; it returns
// `absence` seconds later.
AvailabilityTrace periodic_failures(int nodes, double interval, double absence, double length);

}  // namespace optimus
