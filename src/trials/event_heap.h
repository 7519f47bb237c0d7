// EventHeap: the pending events of a replay, earliest first.
//
// Events at the same time are ordered by kind. Events of the same kind are ordered by insertion, or as in
// Python's heapq. The published simulators of Oobleck, Varuna and Bamboo leave such ties to heapq, and
// Varuna's also reads heapq's underlying array. Their results can only be reproduced with an identical array
// (StepCounting::as_published in trials/replay_case.h).
#pragma once

#include <cstdint>
#include <vector>

namespace optimus {

enum class EventKind { add = 1, remove = 2, ready = 4, rendezvous_end = 5, step_end = 7, checkpoint = 8 };

struct ReplayEvent {
  std::int64_t time = 0;  // in ticks (ReplayCase::ticks)
  EventKind kind = EventKind::add;
  int node = 0;                 // for add, remove and ready
  std::int64_t number = 0;      // index of the rendezvous or of the run of steps that the event ends
  std::int64_t begin_time = 0;  // step_end: when the step started
  std::int64_t order = 0;       // position in the order of insertion
};

enum class TieOrder { insertion_order, heapq_order };

class EventHeap {
 public:
  EventHeap(std::vector<ReplayEvent> events, TieOrder ties);

  bool is_empty() const { return array_.empty(); }
  void push(ReplayEvent event);
  ReplayEvent pop();  // the earliest event; the heap must not be empty

  // Returns whether a removal comes before `event`: in time, or with TieOrder::heapq_order in the heap's
  // array.
  bool has_removal_before(const ReplayEvent& event) const;

 private:
  bool is_before(const ReplayEvent& a, const ReplayEvent& b) const;
  // Moves the element towards the root, but not above index `top`.
  void sift_up(std::size_t index, std::size_t top);
  void sift_down(std::size_t index);

  std::vector<ReplayEvent> array_;
  TieOrder ties_;
  std::int64_t next_order_ = 0;
};

}  // namespace optimus
