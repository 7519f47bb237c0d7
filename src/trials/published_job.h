// PublishedJob: what the published simulators of Oobleck, Varuna and Bamboo have in common. Used only by
// replay_restarting.cpp and replay_redundant.cpp.
//
// Nodes join, become ready and leave. Training is halted during a rendezvous, in which ready nodes register.
// If enough nodes are registered when the rendezvous ends, training continues on all ready nodes with steps
// of equal length. A step is counted when it ends. With StepCounting::as_published, steps also end during a
// rendezvous, and overlapping rendezvous all complete. The first one to end clears the registered nodes, so
// the next one finds no nodes and stops the job.
#pragma once

#include <cstdint>
#include <vector>

#include "trials/event_heap.h"
#include "trials/replay.h"

namespace optimus {

class PublishedJob {
 public:
  explicit PublishedJob(const ReplayCase& replay_case);
  virtual ~PublishedJob() = default;
  PublishedJob(const PublishedJob&) = delete;
  PublishedJob& operator=(const PublishedJob&) = delete;
  ReplayOutcome run();

 protected:
  // in_overlapped_rendezvous: steps of the old plan continue during the rendezvous.
  enum class State { halted, in_rendezvous, in_overlapped_rendezvous, running };

  virtual void on_node_removed(int node, bool was_ready) = 0;
  virtual void on_node_ready(int node) = 0;
  // Called when a rendezvous has ended and enough nodes are registered. `nodes` is the number of ready nodes.
  virtual void on_started(std::int64_t nodes) = 0;
  virtual void on_step_ended(std::int64_t begin_time) = 0;
  virtual bool is_counted(const ReplayEvent& rendezvous_end) const = 0;
  virtual double num_counted_steps() const = 0;

  bool is_published() const { return replay_case_.counting == StepCounting::as_published; }
  bool is_in_rendezvous() const {
    return state_ == State::in_rendezvous || state_ == State::in_overlapped_rendezvous;
  }
  std::vector<int> ready_nodes() const;  // in the order of joining
  void open_rendezvous(std::int64_t length, State state);
  void begin_step(std::int64_t begin, std::int64_t length);
  void drop_step();  // discards the step in flight

  const ReplayCase& replay_case_;
  EventHeap heap_;
  State state_ = State::halted;
  std::int64_t now_ = 0, trace_end_ = 0;  // events at or after trace_end_ are ignored
  std::vector<int> registered_nodes_;
  std::int64_t rendezvous_ = 0;  // index of the latest rendezvous
  std::int64_t run_ = 0;         // index of the current run of steps
  std::int64_t step_end_ = 0;
  bool has_step_ = false;
  ReplayOutcome outcome_;

 private:
  void end_rendezvous(const ReplayEvent& event);
  void end_step(const ReplayEvent& event);

  std::vector<int> present_;    // in the order of joining
  std::vector<bool> is_ready_;  // [node]
  std::int64_t first_start_ = -1, last_end_ = -1;
};

}  // namespace optimus
