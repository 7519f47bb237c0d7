// EventHeap: what a replay has still to come, soonest first.
//
// What comes at the same time comes in the order of its kinds; what is of the same kind, too, in the order in which it was put in, or
// as Python's heapq leaves it. The published simulators of Oobleck, Varuna and Bamboo leave such ties to heapq, and Varuna's looks
// into the array behind it; so their figures come out only where the array is the same (trials/replay.h: Counting::as_published).
#pragma once

#include <cstdint>
#include <vector>

namespace optimus {

enum class EventKind { add = 1, remove = 2, ready = 4, muster_end = 5, step_end = 7, checkpoint = 8 };

struct ReplayEvent {
  std::int64_t time = 0;  // in ticks
  EventKind kind = EventKind::add;
  int node = 0;             // add, remove, ready
  std::int64_t number = 0;  // of the muster or the run of steps that it ends
  std::int64_t began = 0;   // step_end
  std::int64_t order = 0;   // in which it was put in
};

enum class TieOrder { as_put_in, as_heapq };

class EventHeap {
 public:
  EventHeap(std::vector<ReplayEvent> events, TieOrder ties);

  bool is_empty() const { return array_.empty(); }
  void put(ReplayEvent event);
  ReplayEvent take();  // the soonest; there must be one

  // Whether a removal comes before `event`; with ties as heapq has them, whether one would stand before it in the array.
  bool has_removal_before(const ReplayEvent& event) const;

 private:
  bool is_before(const ReplayEvent& a, const ReplayEvent& b) const;
  void raise(std::size_t place, std::size_t top);  // towards the front, not beyond top
  void sink(std::size_t place);

  std::vector<ReplayEvent> array_;
  TieOrder ties_;
  std::int64_t next_order_ = 0;
};

}  // namespace optimus
