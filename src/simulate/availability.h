// Reads traces of node availability (spot instances, failures) in the formats in which other authors publish
// them.
//
//   milliseconds,add|remove,node one line per event (Oobleck, Bamboo, Parcae) milliseconds,count number of
//   nodes from this time on, one line per change or sample (Parcae) seconds,count or hours,count the same as
//   a step function: old and new number at each change (Bamboo,
//                                     AWS); hours have a decimal point
//   date,time,count                   wall-clock time: 2021-12-10, 13:07:45, 80 (Bamboo, GCP)
//   [milliseconds, "add|remove|no-op", {"nodes": […], "duration": …}]   one list per line (Parcae)
//   [{"Time": seconds, "GPUs": count}, …]                               (Sailor)
//   [{"time": minutes, "size": count}, …]                               duration of each count (Tenplex)
//   [{"node_id": …, "event_time": days, "event_type": "fault_start|fault_end"}, …]
//                                     nodes with faults (InfiniteHBD)
//
// How training reacts to the events is decided elsewhere (policy/).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace optimus {

struct NodeEvent {
  double seconds = 0;  // since the start of the trace; never decreases
  bool is_add = true;
  int node = 0;  // numbered in order of first appearance
};

struct AvailabilityTrace {
  std::vector<NodeEvent> events;
  int num_nodes = 0;   // number of distinct nodes in the events
  double length = 0;   // duration of the whole trace in seconds
  std::string form{};  // name of the detected format
};

// Throws a UserError with `source` and the position if the text has none of these formats, or if a node is
// added or removed twice. The first characters determine the format. Milliseconds, seconds and hours are
// distinguished by the rules above.
AvailabilityTrace parse_trace(std::string_view text, const std::string& source);

// The number of available nodes from a given time on. node_counts() returns one entry per change.
struct NodeCount {
  double seconds = 0;
  int nodes = 0;
};
std::vector<NodeCount> node_counts(const AvailabilityTrace& trace);

// Replays training with one fixed plan, the baseline of all policies. Training runs while the required
// nodes are available, loses the current step when one of its nodes is removed, and resumes
// `restart_seconds` after enough nodes are available again.
struct ReplayOptions {
  int nodes_needed = 1;
  double step_seconds = 1, tokens_per_step = 1;
  double restart_seconds = 60;
};
struct Replay {
  double useful_tokens_per_second = 0;
  double fraction_of_oracle = 0;  // relative to training that loses no step and needs no restart
  int restarts = 0;
  // time without training although enough nodes were available, plus the time of lost steps
  double seconds_lost = 0;
  int steps_lost = 0;
};
Replay replay_one_plan(const AvailabilityTrace& trace, const ReplayOptions& options);

}  // namespace optimus
