// Finds an order of moves in which no rank runs out of memory (compare the banker's algorithm). An item is a
// tensor or a whole block. While an item moves, each rank of a class needs `allocated` additional bytes;
// afterwards `freed` bytes are released. Independent of layouts. Internal to src/layout.
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

// Items with equal demands. An item is identified by an index that the caller chooses; if several items are
// equally good, the one with the lowest index moves first.
struct MemoryDemandKind {
  std::vector<MemoryDemand> demands;
  std::vector<int> items;  // in ascending order
};

struct MoveOrderProblem {
  int num_classes = 0;
  std::vector<MemoryDemandKind> kinds;
};

// The maximum over all classes of the bytes above max(bytes at the start, bytes at the end) that a rank
// needs if the items move one after the other in this order. `kind_of` is indexed by item.
std::int64_t excess_of(const MoveOrderProblem& problem, const std::vector<int>& kind_of,
                       const std::vector<int>& order);

// An order whose excess (see excess_of) is at most `reserve`, or nullopt if the search found none. One may
// exist nevertheless: with many classes the problem is hard.
//
// A greedy search: of the items that fit, it first chooses those after which no class has less free memory
// than before, otherwise the one after which the smallest free memory of the affected classes is largest. If
// the search in the order of time fails, it searches backwards from the end, where allocations become
// releases. For one class of ranks whose items all grow or all shrink, one of the two directions finds the
// best order.
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
