#include "trials/event_heap.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace optimus {
namespace {

ReplayEvent event_at(std::int64_t time, EventKind kind, int node) {
  return {.time = time, .kind = kind, .node = node};
}

TEST(EventHeap, TiesKeepInsertionOrder) {
  EventHeap heap({event_at(5, EventKind::add, 0), event_at(5, EventKind::add, 1)}, TieOrder::insertion_order);
  heap.push(event_at(5, EventKind::remove, 2));
  heap.push(event_at(5, EventKind::add, 3));
  heap.push(event_at(1, EventKind::step_end, 4));
  std::vector<int> order;
  while (!heap.is_empty()) order.push_back(heap.pop().node);
  EXPECT_EQ(order, (std::vector<int>{4, 0, 1, 3, 2}));
}

// The order in which Python 3.11's heapq returns seven equal elements after heapify.
TEST(EventHeap, TiesMatchHeapq) {
  std::vector<ReplayEvent> equal;
  for (int i = 0; i < 7; ++i) equal.push_back(event_at(0, EventKind::add, i));
  EventHeap heap(equal, TieOrder::heapq_order);
  std::vector<int> order;
  while (!heap.is_empty()) order.push_back(heap.pop().node);
  EXPECT_EQ(order, (std::vector<int>{6, 2, 5, 0, 1, 4, 3}));
}

TEST(EventHeap, IsSortedWithAnyTieOrder) {
  EXPECT_TRUE(rc::check(
      [](const std::vector<std::uint8_t>& first, const std::vector<std::uint8_t>& later, bool is_heapq) {
        std::vector<ReplayEvent> events;
        for (const std::uint8_t time : first) events.push_back(event_at(time % 16, EventKind::add, 0));
        EventHeap heap(events, is_heapq ? TieOrder::heapq_order : TieOrder::insertion_order);
        for (const std::uint8_t time : later) heap.push(event_at(time % 16, EventKind::remove, 0));
        std::int64_t before = -1;
        std::size_t number = 0;
        for (; !heap.is_empty(); ++number) {
          const ReplayEvent event = heap.pop();
          RC_ASSERT(event.time >= before);
          before = event.time;
        }
        RC_ASSERT(number == first.size() + later.size());
      }));
}

TEST(EventHeap, FindsEarlierRemovals) {
  const EventHeap heap({event_at(0, EventKind::add, 0), event_at(10, EventKind::remove, 0)},
                       TieOrder::insertion_order);
  EXPECT_TRUE(heap.has_removal_before(event_at(11, EventKind::checkpoint, 0)));
  EXPECT_FALSE(heap.has_removal_before(event_at(10, EventKind::checkpoint, 0)));
}

}  // namespace
}  // namespace optimus
