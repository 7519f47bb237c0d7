// Implements availability.h: computations on a trace. availability_read.cpp reads traces.
#include "simulate/availability.h"

#include <algorithm>
#include <cmath>

namespace optimus {

std::vector<NodeCount> node_counts(const AvailabilityTrace& trace) {
  std::vector<NodeCount> counts;
  int nodes = 0;
  for (const NodeEvent& event : trace.events) {
    nodes += event.is_add ? 1 : -1;
    if (!counts.empty() && counts.back().seconds == event.seconds)
      counts.back().nodes = nodes;
    else
      counts.push_back({event.seconds, nodes});
  }
  return counts;
}

Replay replay_one_plan(const AvailabilityTrace& trace, const ReplayOptions& options) {
  Replay result;
  double useful_seconds = 0, possible_seconds = 0, steps = 0;
  std::vector<bool> is_present(static_cast<std::size_t>(trace.num_nodes)), is_used(is_present);
  int num_present = 0;
  bool is_running = false;
  double begin_time = 0, now = 0;  // begin_time: start of training, after the restart
  const auto stop = [&](double at) {
    // Only completed steps count. The current step is lost.
    const double run_seconds = std::max(0.0, at - begin_time),
                 num_steps = std::floor(run_seconds / options.step_seconds);
    steps += num_steps, useful_seconds += num_steps * options.step_seconds;
    result.steps_lost += run_seconds > num_steps * options.step_seconds;
    is_running = false;
  };
  const auto start = [&](double at) {
    if (is_running || num_present < options.nodes_needed) return;
    int num_used = 0;
    for (std::size_t node = 0; node < is_present.size(); ++node) {
      is_used[node] = is_present[node] && num_used < options.nodes_needed;
      num_used += is_used[node];
    }
    is_running = true, begin_time = at + options.restart_seconds;
    ++result.restarts;
  };
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const NodeEvent& event = trace.events[i];
    if (num_present >= options.nodes_needed) possible_seconds += event.seconds - now;
    now = event.seconds;
    const auto node = static_cast<std::size_t>(event.node);
    is_present[node] = event.is_add, num_present += event.is_add ? 1 : -1;
    if (!event.is_add && is_running && is_used[node]) stop(now);
    const bool is_last_at_this_time = i + 1 == trace.events.size() || trace.events[i + 1].seconds > now;
    if (is_last_at_this_time) start(now);
  }
  if (num_present >= options.nodes_needed) possible_seconds += std::max(0.0, trace.length - now);
  if (is_running) stop(trace.length);
  if (trace.length > 0) result.useful_tokens_per_second = steps * options.tokens_per_step / trace.length;
  if (possible_seconds > 0) result.fraction_of_oracle = useful_seconds / possible_seconds;
  result.seconds_lost = std::max(0.0, possible_seconds - useful_seconds);
  return result;
}

}  // namespace optimus
