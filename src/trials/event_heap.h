// EventHeap: the pending events of a replay, earliest first.
//
// Events at the same time are ordered by kind. Events of the same kind are then ordered by insertion, or as
// Python's heapq leaves them. The published simulators of Oobleck, Varuna and Bamboo leave such ties to
// heapq, and Varuna's also reads heapq's underlying array, so their results are reproduced only with the same
// array (trials/replay.h: StepCounting::as_published).
#pragma once

#include <cstdint>
#include <vector>

namespace optimus {

enum class EventKind { add = 1, remove = 2, ready = 4, rendezvous_end = 5, step_end = 7, checkpoint = 8 };

struct ReplayEvent {
  std::int64_t time = 0;  // in ticks
  EventKind kind = EventKind::add;
  int node = 0;                 // add, remove, ready
  std::int64_t number = 0;      // the rendezvous or the run of steps that it ends
  std::int64_t begin_time = 0;  // step_end: start of the step
  std::int64_t order = 0;       // insertion order
};

enum class TieOrder { insertion_order, heapq_order };

class EventHeap {
 public:
  EventHeap(std::vector<ReplayEvent> events, TieOrder ties);

  bool is_empty() const { return array_.empty(); }
  void push(ReplayEvent event);
  ReplayEvent pop();  // the earliest event; the heap must not be empty

  // Whether a removal precedes `event`. With heapq ties: whether one would precede it in the array.
  bool has_removal_before(const ReplayEvent& event) const;

 private:
  bool is_before(const ReplayEvent& a, const ReplayEvent& b) const;
  void sift_up(std::size_t index, std::size_t top);  // moves it towards the front, at most to top
  void sift_down(std::size_t index);

  std::vector<ReplayEvent> array_;
  TieOrder ties_;
  std::int64_t next_order_ = 0;
};

}  // namespace optimus
