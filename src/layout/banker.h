// Banker: in which order may things move so that nobody's memory overflows. A thing here is a tensor or a
// whole block; while it moves, a class of ranks holds `allocated` more, afterwards `freed` less. Knows
// nothing of layouts. Internal to src/layout.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace optimus {

// Classes that a thing does not concern are left out; none comes twice.
struct MemoryDemand {
  int rank_class = 0;
  std::int64_t allocated = 0, freed = 0;
  bool operator==(const MemoryDemand&) const = default;
};

// Things with the same demands. Numbers are given by the caller; lower ones are preferred to come first.
struct MemoryDemandKind {
  std::vector<MemoryDemand> demands;
  std::vector<int> things;  // ascending
};

struct BankerProblem {
  int num_classes = 0;
  std::vector<MemoryDemandKind> kinds;
};

// The most that any class holds above max(start, end) when things move one by one in this order.
// kind_of[thing].
std::int64_t excess_of(const BankerProblem& problem, const std::vector<int>& kind_of,
                       const std::vector<int>& order);

// An order whose excess is at most `reserve`, or nothing when none was found (there may still be one: with
// many classes the question is a hard one).
//
// Greedy: of what fits, first whatever leaves no class with less room; otherwise that after which the
// tightest of its classes has the most room. Tried forwards, and backwards from the end, where growing looks
// like shrinking: for one class of ranks whose things all grow, or all shrink, one of the two finds the best
// order.
std::optional<std::vector<int>> find_order(const BankerProblem& problem, std::int64_t reserve);

// An order in which neighbours that may move together do, where the reserve allows it. The order alone must
// keep it.
struct MergedOrder {
  std::vector<std::vector<int>> groups;
  std::int64_t excess = 0;
};
MergedOrder merge_neighbours(const BankerProblem& problem, const std::vector<int>& kind_of,
                             const std::vector<int>& order, std::int64_t reserve,
                             const std::function<bool(int before, int thing)>& may_join);

}  // namespace optimus
