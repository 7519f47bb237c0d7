// Finds an order of moves in which no rank runs out of memory (compare the banker's algorithm). A thing is a
// tensor or a whole block. While it moves, each rank of a class needs `allocated` additional bytes;
// afterwards `freed` bytes are released. Independent of layouts. Internal to src/layout.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace optimus {

// Lists only the classes that a thing affects, each once.
struct MemoryDemand {
  int rank_class = 0;
  std::int64_t allocated = 0, freed = 0;
  bool operator==(const MemoryDemand&) const = default;
};

// Things with the same demands. The caller numbers the things; lower numbers are preferred to move first.
struct MemoryDemandKind {
  std::vector<MemoryDemand> demands;
  std::vector<int> items;  // in ascending order
};

struct BankerProblem {
  int num_classes = 0;
  std::vector<MemoryDemandKind> kinds;
};

// The maximum number of bytes above max(start, end) that any class needs if the things move one after the
// other in this order. kind_of is indexed by thing.
std::int64_t excess_of(const BankerProblem& problem, const std::vector<int>& kind_of,
                       const std::vector<int>& order);

// An order whose excess is at most `reserve`, or nullopt if none was found. Such an order may still exist:
// with many classes the problem is hard.
//
// A greedy search: of the things that fit, it first takes those after which no class has less free memory,
// otherwise the one after which the smallest free memory of the affected classes is largest. It searches
// forwards, and also backwards from the end, where growth becomes shrinkage. For one class of ranks whose
// things all grow or all shrink, one of the two directions finds the best order.
std::optional<std::vector<int>> find_order(const BankerProblem& problem, std::int64_t reserve);

// Groups adjacent things that may move together, as far as the reserve allows. The order itself must keep the
// reserve.
struct MergedOrder {
  std::vector<std::vector<int>> groups;
  std::int64_t excess = 0;
};
MergedOrder merge_adjacent(const BankerProblem& problem, const std::vector<int>& kind_of,
                           const std::vector<int>& order, std::int64_t reserve,
                           const std::function<bool(int before, int item)>& may_join);

}  // namespace optimus
