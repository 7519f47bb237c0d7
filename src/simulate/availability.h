// Which nodes were there when: traces of spot machines and failures, read from the forms in which others publish them.
//
//   milliseconds,add|remove,node           one line an event (Oobleck, Bamboo, Parcae)
//   milliseconds,count                     nodes running from then on, a line for each change or sample (Parcae)
//   seconds,count  or  hours,count         the same, drawn as stairs: old and new number at each change (Bamboo, AWS); hours have a point
//   date,time,count                        by the clock: 2021-12-10, 13:07:45, 80 (Bamboo, GCP)
//   [milliseconds, "add|remove|no-op", {"nodes": […], "duration": …}]      a list a line (Parcae)
//   [{"Time": seconds, "GPUs": count}, …]                                   (Sailor)
//   [{"time": minutes, "size": count}, …]                                   how long each number lasts (Tenplex)
//   [{"node_id": …, "event_time": days, "event_type": "fault_start|fault_end"}, …]   nodes with faults (InfiniteHBD)
//
// Nothing here decides what a training does about it (policy/).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace optimus {

struct NodeEvent {
  double seconds = 0;  // since the trace began; never descends
  bool is_add = true;
  int node = 0;  // numbered in the order in which they first come
};

struct AvailabilityTrace {
  std::vector<NodeEvent> events;
  int num_nodes = 0;   // different ones
  double length = 0;   // of the whole trace, seconds
  std::string form{};  // that it was read as, for people
};

// Throws UserError with `source` and the place for what is in none of these forms, and for a node that is added or removed
// twice. The form is known by its first characters; milliseconds, seconds and hours by the rules above.
AvailabilityTrace parse_trace(std::string_view text, const std::string& source);

// How many nodes are there at a time, as steps: (from when, how many).
struct NodeCount {
  double seconds = 0;
  int nodes = 0;
};
std::vector<NodeCount> node_counts(const AvailabilityTrace& trace);

// A training that keeps one plan: it runs while the nodes that it needs are there, loses the step in flight when one of its
// nodes goes, and starts again `restart` after there are enough. What all other policies are compared with.
struct ReplayOptions {
  int nodes_needed = 1;
  double step_seconds = 1, tokens_per_step = 1;
  double restart_seconds = 60;
};
struct Replay {
  double useful_tokens_per_second = 0;
  double fraction_of_oracle = 0;  // of a training that loses nothing and needs no restart
  int restarts = 0;
  double seconds_lost = 0;  // standing still though nodes were there, and steps done in vain
  int steps_lost = 0;
};
Replay replay_one_plan(const AvailabilityTrace& trace, const ReplayOptions& options);

}  // namespace optimus
