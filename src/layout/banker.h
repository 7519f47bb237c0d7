// Finds an order of moves in which no rank runs out of memory (similar to the banker's algorithm). An item is
// a tensor or a whole block. While an item moves, each rank of a class needs `allocated` additional bytes.
// After the move, `freed` bytes are released. This header does not depend on layouts. Internal to src/layout.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace optimus {

// The memory that moving an item requires on each rank of one class. An item lists only the classes that it
// affects, each once.
struct MemoryDemand {
  int rank_class = 0;
  std::int64_t allocated = 0, freed = 0;
  bool operator==(const MemoryDemand&) const = default;
};

// Items with equal demands. An item is identified by an index that the caller chooses. Among equally good
// items, the one with the lowest index moves first.
struct MemoryDemandKind {
  std::vector<MemoryDemand> demands;
  std::vector<int> items;  // in ascending order
};

struct MoveOrderProblem {
  int num_classes = 0;
  std::vector<MemoryDemandKind> kinds;
};

// The peak excess memory if the items move one at a time in this order. The excess of a rank is the number of
// bytes that it needs above max(bytes at the start, bytes at the end). The result is the maximum over all
// classes. `kind_of` is indexed by item.
std::int64_t excess_of(const MoveOrderProblem& problem, const std::vector<int>& kind_of,
                       const std::vector<int>& order);

// Returns an order whose excess (see excess_of) is at most `reserve`, or nullopt if the search finds none.
// The search can miss an order that exists, because the problem is hard if there are many classes.
//
// The search is greedy. Among the items that fit, it prefers those that leave no class with less free memory
// than before. If there are none, it chooses the item that leaves the most free memory on the affected class
// with the least. If the search in the order of time fails, a second search runs backwards from the end,
// where allocations become releases. If there is only one class of ranks and its items all grow or all
// shrink, one of the two directions finds the best order.
std::optional<std::vector<int>> find_order(const MoveOrderProblem& problem, std::int64_t reserve);

// Groups adjacent items that may move together, as far as the reserve allows. `order` itself must stay
// within the reserve.
struct MergedOrder {
  std::vector<std::vector<int>> groups;
  std::int64_t excess = 0;
};
MergedOrder merge_adjacent(const MoveOrderProblem& problem, const std::vector<int>& kind_of,
                           const std::vector<int>& order, std::int64_t reserve,
                           const std::function<bool(int before, int item)>& may_join);

}  // namespace optimus
