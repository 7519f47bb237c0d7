// See published_job.h.
#include "trials/published_job.h"

#include <algorithm>
#include <cmath>

namespace optimus {
namespace {

std::vector<ReplayEvent> events_of(const ReplayCase& replay_case) {
  const AvailabilityTrace& trace = replay_case.trace;
  std::vector<ReplayEvent> events;
  events.reserve(trace.events.size());
  for (const NodeEvent& event : trace.events)
    events.push_back({.time = replay_case.ticks(event.seconds),
                      .kind = event.is_add ? EventKind::add : EventKind::remove,
                      .node = event.node});
  return events;
}

}  // namespace

PublishedJob::PublishedJob(const ReplayCase& replay_case)
    : replay_case_(replay_case),
      heap_(events_of(replay_case), replay_case.counting == StepCounting::as_published
                                        ? TieOrder::heapq_order
                                        : TieOrder::insertion_order),
      trace_end_(replay_case.ticks(replay_case.trace.length)),
      is_ready_(static_cast<std::size_t>(replay_case.trace.num_nodes)) {}

std::vector<int> PublishedJob::ready_nodes() const {
  std::vector<int> nodes;
  for (const int node : present_)
    if (is_ready_[static_cast<std::size_t>(node)]) nodes.push_back(node);
  return nodes;
}

void PublishedJob::open_rendezvous(std::int64_t length, State state) {
  state_ = state;
  heap_.push({.time = now_ + length, .kind = EventKind::rendezvous_end, .number = ++rendezvous_});
}

void PublishedJob::begin_step(std::int64_t begin, std::int64_t length) {
  step_end_ = begin + length;
  has_step_ = true;
  heap_.push({.time = step_end_, .kind = EventKind::step_end, .number = run_, .begin_time = begin});
}

void PublishedJob::drop_step() {
  ++run_;  // so that the pending step_end event is recognized as obsolete
  outcome_.steps_lost += has_step_;
  has_step_ = false;
}

void PublishedJob::end_rendezvous(const ReplayEvent& event) {
  if (!is_counted(event)) return;
  std::erase_if(registered_nodes_, [&](int node) { return !is_ready_[static_cast<std::size_t>(node)]; });
  drop_step();
  if (std::ssize(registered_nodes_) < replay_case_.reconfiguration.min_nodes) {
    registered_nodes_.clear();
    state_ = State::halted;
    return;
  }
  state_ = State::running;
  ++outcome_.starts;
  if (first_start_ < 0) first_start_ = last_end_ = now_;
  on_started(std::ssize(ready_nodes()));
  registered_nodes_.clear();
}

void PublishedJob::end_step(const ReplayEvent& event) {
  if (event.number != run_) return;
  if (state_ != State::running && !is_published()) return;  // the step is dropped when the rendezvous ends
  has_step_ = false;
  last_end_ = now_;
  outcome_.useful_seconds += static_cast<double>(now_ - event.begin_time) / replay_case_.ticks_per_second;
  on_step_ended(event.begin_time);
}

ReplayOutcome PublishedJob::run() {
  while (!heap_.is_empty()) {
    const ReplayEvent event = heap_.pop();
    if (event.time >= trace_end_) break;
    now_ = event.time;
    const auto node = static_cast<std::size_t>(event.node);
    switch (event.kind) {
      case EventKind::add:
        present_.push_back(event.node);
        heap_.push({.time = now_ + replay_case_.ticks(replay_case_.ready_seconds),
                    .kind = EventKind::ready,
                    .node = event.node});
        break;
      case EventKind::ready:
        if (std::find(present_.begin(), present_.end(), event.node) == present_.end()) break;
        is_ready_[node] = true;
        on_node_ready(event.node);
        break;
      case EventKind::remove: {
        const bool was_ready = is_ready_[node];
        std::erase(present_, event.node);
        is_ready_[node] = false;
        on_node_removed(event.node, was_ready);
        break;
      }
      case EventKind::rendezvous_end:
        end_rendezvous(event);
        break;
      case EventKind::step_end:
        end_step(event);
        break;
      case EventKind::checkpoint:
        break;
    }
  }
  const double steps = num_counted_steps();
  outcome_.steps = std::llround(steps);
  if (last_end_ > first_start_)
    outcome_.samples_per_second = replay_case_.ticks_per_second * steps * replay_case_.batch /
                                  static_cast<double>(last_end_ - first_start_);
  return outcome_;
}

}  // namespace optimus
