// Computes the cells of each kind of tensor and converts their slots into ranks.
#include "layout/sync.h"

#include <algorithm>
#include <unordered_map>

#include "layout/kinds.h"
#include "layout/slots.h"

namespace optimus {
namespace {

// Stores each distinct group of ranks once and returns its index.
class GroupTable {
 public:
  explicit GroupTable(std::vector<std::vector<Rank>>& groups) : groups_(groups) {}

  int intern(std::vector<Rank> ranks) {
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    std::size_t hash = ranks.size();
    for (const Rank rank : ranks)
      hash = (hash ^ static_cast<std::size_t>(rank.value)) * 0x9e3779b97f4a7c15ULL + 1;
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto it = begin; it != end; ++it)
      if (groups_[static_cast<std::size_t>(it->second)] == ranks) return it->second;
    by_hash_.emplace(hash, static_cast<int>(groups_.size()));
    groups_.push_back(std::move(ranks));
    return static_cast<int>(groups_.size()) - 1;
  }

 private:
  std::vector<std::vector<Rank>>& groups_;
  std::unordered_multimap<std::size_t, int> by_hash_;
};

}  // namespace

SyncPlan sync(const Layout& compute) {
  validate(compute);
  SyncPlan plan;
  GroupTable table(plan.groups);
  const Layout* layouts[] = {&compute};
  const Kinds kinds = kinds_of(layouts);
  std::vector<std::vector<Reduction>> reductions_of_kind;
  for (const std::vector<int>& tensors : kinds.tensors) {
    const Slots slots = slots_of(compute, tensors[0]);
    SlotSets sets;
    std::vector<SlotCell> cells;
    if (!slots.partitions.empty()) append_cells(slots, nullptr, Box(slots.shape), sets, cells);
    std::vector<int> group_of_set;
    for (int set = 0; set < sets.size(); ++set) {
      std::vector<Rank> ranks;
      for (const int slot : sets[set]) append_holders(slots, slot, compute, ranks);
      group_of_set.push_back(table.intern(std::move(ranks)));
    }
    auto& reductions = reductions_of_kind.emplace_back();
    for (const SlotCell& cell : cells) {
      reductions.push_back(
          {0, static_cast<int>(plan.boxes.size()), group_of_set[static_cast<std::size_t>(cell.holders)]});
      plan.boxes.push_back(cell.box);
    }
  }
  for (int t = 0; t < static_cast<int>(compute.tensors.size()); ++t)
    for (Reduction reduction :
         reductions_of_kind[static_cast<std::size_t>(kinds.kind_of[static_cast<std::size_t>(t)])]) {
      reduction.tensor = t;
      plan.reductions.push_back(reduction);
    }
  return plan;
}

Rank canonical_owner(const SyncPlan& plan, const Reduction& reduction) {
  return plan.groups[static_cast<std::size_t>(reduction.group)].front();
}

}  // namespace optimus
