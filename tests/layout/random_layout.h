// Random small layouts for property tests: odd sizes; uneven, overlapping and empty parts; shards with empty
// tails; replicas; several groups with different cuts; tied tensors (a rank in two groups).
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

#include "layout/diff.h"
#include "layout/layout.h"

namespace optimus {

// Uses the full range from the first case on; still shrinks towards `low`.
inline int draw(int low, int high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}
inline bool one_in(int n) { return draw(1, n) == 1; }

inline std::vector<TensorInfo> random_tensors(int max_tensors = 4) {
  std::vector<TensorInfo> tensors;
  const int count = draw(1, max_tensors);
  for (int t = 0; t < count; ++t) {
    if (t > 0 && one_in(3)) {  // of the same kind as the previous one
      tensors.push_back(tensors.back());
    } else {
      TensorInfo tensor;
      tensor.shape.num_dims = draw(1, 3);
      for (int d = 0; d < tensor.shape.num_dims; ++d)
        tensor.shape[d] = draw(1, tensor.shape.num_dims == 3 ? 5 : 11);
      tensor.bytes_per_element = draw(1, 4);
      tensors.push_back(tensor);
    }
    tensors.back().name = "t" + std::to_string(t);
    tensors.back().block = t / 2;
  }
  return tensors;
}

inline std::vector<Rank> shuffled(std::vector<Rank> ranks) {
  for (std::size_t i = ranks.size(); i > 1; --i)
    std::swap(ranks[i - 1], ranks[static_cast<std::size_t>(draw(0, static_cast<int>(i) - 1))]);
  return ranks;
}

inline DeviceGrid random_grid(const std::vector<Rank>& ranks) {
  const int n = static_cast<int>(ranks.size());
  DeviceGrid grid;
  grid.num_parts = draw(1, n);
  grid.num_shards = draw(1, n / grid.num_parts);
  grid.num_replicas = draw(1, n / grid.num_parts / grid.num_shards);
  grid.ranks.assign(ranks.begin(), ranks.begin() + grid.size());
  return grid;
}

inline std::vector<Span> random_parts(std::int64_t size, int num_parts) {
  std::vector<Span> parts;
  switch (draw(0, 3)) {
    case 0:
      return split_evenly(size, num_parts);
    case 1: {
      std::vector<double> weights;
      for (int i = 0; i < num_parts; ++i) weights.push_back(draw(i == 0 ? 1 : 0, 5));
      return split_by_weight(size, weights);
    }
    case 2: {  // fewer heads than parts: neighboring parts hold the same heads
      const int heads = draw(1, num_parts);
      const auto spans = split_evenly(size, heads);
      for (int i = 0; i < num_parts; ++i)
        parts.push_back(spans[static_cast<std::size_t>(i * heads / num_parts)]);
      return parts;
    }
    default:  // an even split, each part extended into its neighbors, in any order
      parts = split_evenly(size, num_parts);
      for (Span& part : parts) {
        part.begin = std::max<std::int64_t>(0, part.begin - draw(0, 2));
        part.end = std::min(size, part.end + draw(0, 2));
      }
      if (one_in(2)) std::reverse(parts.begin(), parts.end());
      return parts;
  }
}

// Uses some of `ranks`. Groups are mostly disjoint, as pipelines are.
inline Layout random_layout(const std::vector<TensorInfo>& tensors, const std::vector<Rank>& ranks) {
  Layout layout{tensors, {}, {}};
  std::vector<Rank> left = shuffled(ranks);
  const int num_grids = draw(1, 3);
  for (int g = 0; g < num_grids; ++g) {
    if (left.empty() || one_in(4)) left = shuffled(ranks);
    layout.grids.push_back(random_grid(left));
    left.erase(left.begin(), left.begin() + layout.grids.back().size());
  }
  for (const TensorInfo& tensor : tensors) {
    if (!layout.placements.empty() && one_in(2) &&
        tensor.shape == layout.tensors[layout.placements.size() - 1].shape) {
      layout.placements.push_back(layout.placements.back());
      continue;
    }
    auto& placements = layout.placements.emplace_back();
    const int num_placements = one_in(2) ? 1 : draw(1, 3);
    for (int i = 0; i < num_placements; ++i) {
      Placement placement;
      placement.grid = draw(0, num_grids - 1);
      placement.split_dim = draw(-1, tensor.shape.num_dims - 1);
      if (placement.split_dim >= 0)
        placement.parts = random_parts(tensor.shape[placement.split_dim],
                                       layout.grids[static_cast<std::size_t>(placement.grid)].num_parts);
      placements.push_back(placement);
    }
  }
  return layout;
}

inline std::vector<Rank> first_ranks(int count) {
  std::vector<Rank> ranks;
  for (int r = 0; r < count; ++r) ranks.push_back(Rank{r});
  return ranks;
}

inline RankDomains random_topology(int num_ranks) {
  RankDomains topology;
  if (one_in(3)) return topology;
  const int num_nodes = draw(1, 4);
  auto& node_of = topology.domain_of.emplace_back();
  for (int r = 0; r < num_ranks; ++r) node_of.push_back(draw(0, num_nodes - 1));
  if (one_in(2)) {
    auto rack_of = node_of;
    for (int& rack : rack_of) rack = rack / 2;
    topology.domain_of.push_back(rack_of);
  }
  return topology;
}

struct Scenario {
  Layout from, to;
  DiffOptions options;
};

// Ranks may join, leave, or (if may_die) die.
inline Scenario random_scenario(bool may_die = false) {
  Scenario scenario;
  const int world = draw(1, 9);
  const auto tensors = random_tensors();
  scenario.from = random_layout(tensors, first_ranks(world));
  std::vector<Rank> alive;
  for (const Rank rank : first_ranks(world))
    if (may_die && static_cast<int>(alive.size()) + 1 < world && one_in(4))
      scenario.options.dead.push_back(rank);
    else
      alive.push_back(rank);
  scenario.to = random_layout(tensors, alive);
  if (one_in(3) && scenario.options.dead.empty())  // some tensors do not move
    for (std::size_t t = 0; t < tensors.size(); ++t)
      if (one_in(2)) {
        scenario.to.placements[t].clear();
        for (Placement placement : scenario.from.placements[t]) {
          scenario.to.grids.push_back(scenario.from.grids[static_cast<std::size_t>(placement.grid)]);
          placement.grid = static_cast<int>(scenario.to.grids.size()) - 1;
          scenario.to.placements[t].push_back(placement);
        }
      }
  scenario.options.topology = random_topology(world);
  scenario.options.chunk = Bytes(draw(1, 200));
  return scenario;
}

}  // namespace optimus
