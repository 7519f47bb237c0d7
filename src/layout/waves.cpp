// Determines the order in which tensors move, so that no rank exceeds its memory limit. Uses the first of
// these orders that stays within the reserve: whole blocks, one wave each, alternating between kinds of
// blocks; whole blocks in an order found by search (layout/banker.h); single tensors in an order found by
// search.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "layout/demand.h"

namespace optimus {
namespace {

// Units are blocks or tensors, each of which moves as a whole. `problem` describes the task of ordering them.
struct Units {
  std::vector<std::vector<int>> tensors;  // [unit]: tensors of the unit. Units are in the order of the model
  std::vector<int> kind_of;               // [unit]: index into problem.kinds
  MoveOrderProblem problem;
};

std::vector<MemoryDemand> sum_of(const std::vector<int>& kinds, const MemoryDemands& demands) {
  std::map<int, MemoryDemand> by_class;
  for (const int kind : kinds)
    for (const MemoryDemand& demand : demands.of_kind[static_cast<std::size_t>(kind)]) {
      MemoryDemand& sum =
          by_class.try_emplace(demand.rank_class, MemoryDemand{demand.rank_class, 0, 0}).first->second;
      sum.allocated += demand.allocated, sum.freed += demand.freed;
    }
  std::vector<MemoryDemand> result;
  for (const auto& [rank_class, demand] : by_class) result.push_back(demand);
  return result;
}

Units units_of(const LayoutChange& change, const MemoryDemands& demands,
               std::vector<std::vector<int>> tensors) {
  Units units{std::move(tensors), {}, {demands.num_classes, {}}};
  std::map<std::vector<int>, int> kind_of_tensors;  // kinds of the unit's tensors -> kind of the unit
  for (int u = 0; u < static_cast<int>(units.tensors.size()); ++u) {
    std::vector<int> kinds;
    for (const int t : units.tensors[static_cast<std::size_t>(u)])
      kinds.push_back(change.kind_of[static_cast<std::size_t>(t)]);
    std::sort(kinds.begin(), kinds.end());
    const auto [known, is_new] =
        kind_of_tensors.try_emplace(kinds, static_cast<int>(units.problem.kinds.size()));
    if (is_new) units.problem.kinds.push_back({sum_of(kinds, demands), {}});
    units.problem.kinds[static_cast<std::size_t>(known->second)].items.push_back(u);
    units.kind_of.push_back(known->second);
  }
  return units;
}

int block_of(const LayoutChange& change, int tensor) {
  return change.to.tensors[static_cast<std::size_t>(tensor)].block;
}

// The tensors that change on any rank, in the order of the model.
std::vector<int> moving_tensors(const LayoutChange& change, const MemoryDemands& demands) {
  std::vector<int> tensors;
  for (int t = 0; t < static_cast<int>(change.to.tensors.size()); ++t)
    if (!demands.of_kind[static_cast<std::size_t>(change.kind_of[static_cast<std::size_t>(t)])].empty())
      tensors.push_back(t);
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](int a, int b) { return block_of(change, a) < block_of(change, b); });
  return tensors;
}

Units blocks_of(const LayoutChange& change, const MemoryDemands& demands) {
  std::vector<std::vector<int>> blocks;
  for (const int tensor : moving_tensors(change, demands)) {
    if (blocks.empty() || block_of(change, blocks.back()[0]) != block_of(change, tensor))
      blocks.emplace_back();
    blocks.back().push_back(tensor);
  }
  return units_of(change, demands, std::move(blocks));
}

Units single_tensors_of(const LayoutChange& change, const MemoryDemands& demands) {
  std::vector<std::vector<int>> tensors;
  for (const int tensor : moving_tensors(change, demands)) tensors.push_back({tensor});
  return units_of(change, demands, std::move(tensors));
}

std::vector<int> model_order(const Units& units) {
  std::vector<int> order(units.tensors.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Distributes the units of every kind evenly from the first wave to the last. Blocks with different source or
// destination ranks are of different kinds, so no link stays idle while only blocks that use another link
// move.
std::vector<int> alternating_order(const Units& units) {
  std::vector<double> wave_position(units.tensors.size());
  for (const MemoryDemandKind& kind : units.problem.kinds)
    for (std::size_t i = 0; i < kind.items.size(); ++i)
      wave_position[static_cast<std::size_t>(kind.items[i])] =
          (static_cast<double>(i) + 0.5) / static_cast<double>(kind.items.size());
  std::vector<int> order = model_order(units);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return wave_position[static_cast<std::size_t>(a)] < wave_position[static_cast<std::size_t>(b)];
  });
  return order;
}

std::int64_t excess_of(const Units& units, const std::vector<int>& order) {
  return excess_of(units.problem, units.kind_of, order);
}

std::optional<std::vector<int>> find_order(const Units& units, std::int64_t reserve) {
  std::vector<int> order = model_order(units);
  if (excess_of(units, order) <= reserve) return order;
  return find_order(units.problem, reserve);
}

WaveOrder make_waves(const MemoryDemands& demands, const Units& units, const std::vector<int>& order) {
  WaveOrder result{{}, Bytes(excess_of(units, order)), demands.lower_bound, demands.full_fetch_bytes};
  for (const int unit : order) result.waves.push_back(units.tensors[static_cast<std::size_t>(unit)]);
  return result;
}

// Creates waves of single tensors. Adjacent tensors of the same block share a wave if the reserve allows it.
WaveOrder make_merged_waves(const LayoutChange& change, const MemoryDemands& demands, const Units& units,
                            const std::vector<int>& order, std::int64_t reserve) {
  const auto block = [&](int unit) {
    return block_of(change, units.tensors[static_cast<std::size_t>(unit)][0]);
  };
  const MergedOrder merged =
      merge_adjacent(units.problem, units.kind_of, order, reserve,
                     [&](int before, int unit) { return block(before) == block(unit); });
  WaveOrder result{{}, Bytes(merged.excess), demands.lower_bound, demands.full_fetch_bytes};
  for (const std::vector<int>& group : merged.groups) {
    result.waves.emplace_back();
    for (const int unit : group)
      result.waves.back().push_back(units.tensors[static_cast<std::size_t>(unit)][0]);
  }
  return result;
}

// A reserve that is sufficient to order single tensors, found by bisection to within about one percent.
std::int64_t sufficient_reserve(const Units& units, std::int64_t too_small) {
  std::int64_t sufficient = excess_of(units, model_order(units));
  while (sufficient - too_small > std::max<std::int64_t>(1, sufficient / 128)) {
    const std::int64_t middle = too_small + (sufficient - too_small) / 2;
    (find_order(units, middle) ? sufficient : too_small) = middle;
  }
  return sufficient;
}

}  // namespace

DiffOutcome<WaveOrder> order_waves(const LayoutChange& change) {
  const MemoryDemands demands = demands_of(change);
  const std::int64_t reserve =
      change.options.reserve ? change.options.reserve->value : std::numeric_limits<std::int64_t>::max();
  const Units blocks = blocks_of(change, demands);
  const std::vector<int> alternating = alternating_order(blocks);
  if (excess_of(blocks, alternating) <= reserve) return make_waves(demands, blocks, alternating);
  if (const auto order = find_order(blocks, reserve)) return make_waves(demands, blocks, *order);
  const Units tensors = single_tensors_of(change, demands);
  if (const auto order = find_order(tensors, reserve))
    return make_merged_waves(change, demands, tensors, *order, reserve);
  const Bytes sufficient(sufficient_reserve(tensors, reserve));
  return tl::unexpected(DiffFailure{
      {fmt::format("the memory reserve of {} is too small for this layout change; {} would be sufficient",
                   text(Bytes(reserve)), text(sufficient))},
      {},
      sufficient});
}

}  // namespace optimus
