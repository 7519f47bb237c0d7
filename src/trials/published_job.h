// PublishedJob: what the published simulators of Oobleck, Varuna and Bamboo have in common. Used by replay_restarting.cpp and
// replay_redundant.cpp alone.
//
// Nodes come, get ready, go. A *muster* is a halt in which nodes gather (the *roster*); when it ends with nodes enough, training goes
// on on all that are ready, in steps of equal length, each of which counts when it ends. With Counting::as_published steps also end
// inside musters, and musters that follow each other closely each take place: the first to end empties the roster, and the next finds
// nobody and halts the job.
#pragma once

#include <cstdint>
#include <vector>

#include "trials/event_heap.h"
#include "trials/replay.h"

namespace optimus {

class PublishedJob {
 public:
  explicit PublishedJob(const ReplayCase& one);
  virtual ~PublishedJob() = default;
  PublishedJob(const PublishedJob&) = delete;
  PublishedJob& operator=(const PublishedJob&) = delete;
  ReplayOutcome run();

 protected:
  // in_step_muster: steps of the old plan go on.
  enum class State { halted, in_muster, in_step_muster, running };

  virtual void removed(int node, bool was_ready) = 0;
  virtual void got_ready(int node) = 0;
  virtual void started(
      std::int64_t nodes) = 0;  // a muster has ended with nodes enough, of which these are ready
  virtual void step_ended(std::int64_t began) = 0;
  virtual bool counts(const ReplayEvent& muster_end) const = 0;
  virtual double steps_that_count() const = 0;

  bool is_published() const { return one_.counting == Counting::as_published; }
  bool is_in_muster() const { return state_ == State::in_muster || state_ == State::in_step_muster; }
  std::vector<int> ready_nodes() const;  // in the order in which they came
  void open_muster(std::int64_t length, State state);
  void begin_step(std::int64_t begin, std::int64_t length);
  void drop_step();  // the one in flight

  const ReplayCase& one_;
  EventHeap heap_;
  State state_ = State::halted;
  std::int64_t now_ = 0, last_ = 0;  // last_: end of the trace; what comes then is not handled any more
  std::vector<int> roster_;
  std::int64_t muster_ = 0;  // number of the latest
  std::int64_t run_ = 0;     // number of the run of steps that is under way
  std::int64_t step_end_ = 0;
  bool has_step_ = false;
  ReplayOutcome outcome_;

 private:
  void end_muster(const ReplayEvent& event);
  void end_step(const ReplayEvent& event);

  std::vector<int> present_;    // in the order in which they came
  std::vector<bool> is_ready_;  // [node]
  std::int64_t first_start_ = -1, last_end_ = -1;
};

}  // namespace optimus
