// Implements event_heap.h as a binary heap that swaps elements exactly like Python's heapq. To sift an
// element down, it first moves the element to a leaf along the smaller children and then sifts it up from
// there.
#include "trials/event_heap.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace optimus {

EventHeap::EventHeap(std::vector<ReplayEvent> events, TieOrder ties)
    : array_(std::move(events)), ties_(ties) {
  for (ReplayEvent& event : array_) event.order = next_order_++;
  for (std::size_t index = array_.size() / 2; index-- > 0;) sift_down(index);
}

bool EventHeap::is_before(const ReplayEvent& a, const ReplayEvent& b) const {
  if (a.time != b.time) return a.time < b.time;
  if (a.kind != b.kind) return a.kind < b.kind;
  return ties_ == TieOrder::insertion_order && a.order < b.order;
}

void EventHeap::sift_up(std::size_t index, std::size_t top) {
  const ReplayEvent element = array_[index];
  while (index > top) {
    const std::size_t parent = (index - 1) / 2;
    if (!is_before(element, array_[parent])) break;
    array_[index] = array_[parent];
    index = parent;
  }
  array_[index] = element;
}

void EventHeap::sift_down(std::size_t index) {
  const std::size_t top = index;
  const ReplayEvent element = array_[index];
  while (2 * index + 1 < array_.size()) {
    std::size_t child = 2 * index + 1;
    if (child + 1 < array_.size() && !is_before(array_[child], array_[child + 1])) ++child;
    array_[index] = array_[child];
    index = child;
  }
  array_[index] = element;
  sift_up(index, top);
}

void EventHeap::push(ReplayEvent event) {
  event.order = next_order_++;
  array_.push_back(event);
  sift_up(array_.size() - 1, 0);
}

ReplayEvent EventHeap::pop() {
  ensure(!array_.empty(), "pop() from an empty event heap");
  const ReplayEvent earliest = array_.front(), last = array_.back();
  array_.pop_back();
  if (!array_.empty()) array_.front() = last, sift_down(0);
  return earliest;
}

bool EventHeap::has_removal_before(const ReplayEvent& event) const {
  if (ties_ == TieOrder::insertion_order)
    return std::any_of(array_.begin(), array_.end(), [&](const ReplayEvent& other) {
      return other.kind == EventKind::remove && other.time < event.time;
    });
  EventHeap extended_heap = *this;
  extended_heap.push(event);
  const std::int64_t event_order = next_order_;
  for (const ReplayEvent& other : extended_heap.array_) {
    if (other.order == event_order) return false;
    if (other.kind == EventKind::remove) return true;
  }
  return false;
}

}  // namespace optimus
