// Computes the boxes of a layout on demand. Validation is in layout_validity.cpp.
#include "layout/layout.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace optimus {

std::vector<Span> split_evenly(std::int64_t n, int parts) {
  ensure(n >= 0 && parts >= 1, "cannot split {} items into {} parts", n, parts);
  std::vector<Span> spans;
  spans.reserve(static_cast<std::size_t>(parts));
  std::int64_t begin = 0;
  for (int i = 0; i < parts; ++i) {
    const std::int64_t size = n / parts + (i < n % parts ? 1 : 0);
    spans.push_back({begin, begin + size});
    begin += size;
  }
  return spans;
}

std::vector<Span> split_by_weight(std::int64_t n, const std::vector<double>& weights) {
  ensure(n >= 0, "cannot split {} items by weight", n);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights)
    if (!std::isfinite(weight) || weight < 0)
      throw UserError("split weight: expected a finite, non-negative number, got {}", weight);
  if (!(sum > 0) || !std::isfinite(sum))
    throw UserError("sum of split weights: expected a positive number, got {}", sum);

  std::vector<std::int64_t> sizes;
  std::vector<double> remainders;
  std::int64_t remaining = n;
  for (const double weight : weights) {
    const double share = static_cast<double>(n) * (weight / sum);
    // The sizes must not exceed n in total because of rounding.
    sizes.push_back(std::min(static_cast<std::int64_t>(share), remaining));
    remainders.push_back(weight > 0 ? share - static_cast<double>(sizes.back()) : -1);
    remaining -= sizes.back();
  }
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  // A span with zero weight receives nothing, because its remainder of -1 is sorted last. Fewer items are
  // left than there are spans with a positive weight, unless n exceeds the precision of a double. In that
  // case, the first span receives the remaining items.
  for (std::size_t i = 0; remaining > 0 && i < order.size() && remainders[order[i]] >= 0; ++i, --remaining)
    ++sizes[order[i]];
  sizes[order[0]] += remaining;

  std::vector<Span> spans;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) spans.push_back({begin, begin + size}), begin += size;
  return spans;
}

Span shard_span(std::int64_t n, int shards, int index) {
  const std::int64_t block = (n + shards - 1) / shards;
  return {std::min(n, index * block), std::min(n, (index + 1) * block)};
}

Box box_of_shard(const TensorInfo& tensor, const Placement& placement, const DeviceGrid& grid, int shard,
                 int part) {
  Box box(tensor.shape);
  if (placement.split_dim >= 0) box[placement.split_dim] = placement.parts[static_cast<std::size_t>(part)];
  const Span rows = box[0];
  const Span own_span = shard_span(rows.size(), grid.num_shards, shard);
  box[0] = {rows.begin + own_span.begin, rows.begin + own_span.end};
  return box;
}

int num_ranks(const Layout& layout) {
  int count = 0;
  for (const DeviceGrid& grid : layout.grids)
    for (const Rank rank : grid.ranks) count = std::max(count, rank.value + 1);
  return count;
}

RankIndex::RankIndex(const Layout& layout)
    : first_position_(static_cast<std::size_t>(optimus::num_ranks(layout)) + 1),
      first_placement_(layout.grids.size() + 1) {
  for (const DeviceGrid& grid : layout.grids)
    for (const Rank rank : grid.ranks) ++first_position_[static_cast<std::size_t>(rank.value) + 1];
  std::partial_sum(first_position_.begin(), first_position_.end(), first_position_.begin());
  positions_.resize(static_cast<std::size_t>(first_position_.back()));
  std::vector<int> next_position(first_position_);
  for (int g = 0; g < static_cast<int>(layout.grids.size()); ++g) {
    const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(g)];
    const Rank* rank = grid.ranks.data();
    for (int replica = 0; replica < grid.num_replicas; ++replica)
      for (int shard = 0; shard < grid.num_shards; ++shard)
        for (int part = 0; part < grid.num_parts; ++part, ++rank) {
          int& at = next_position[static_cast<std::size_t>(rank->value)];
          positions_[static_cast<std::size_t>(at++)] = {g, replica, shard, part};
        }
  }

  for (const auto& placements : layout.placements)
    for (const Placement& placement : placements)
      ++first_placement_[static_cast<std::size_t>(placement.grid) + 1];
  std::partial_sum(first_placement_.begin(), first_placement_.end(), first_placement_.begin());
  placements_.resize(static_cast<std::size_t>(first_placement_.back()));
  next_position = first_placement_;
  for (int t = 0; t < static_cast<int>(layout.placements.size()); ++t) {
    const auto& placements = layout.placements[static_cast<std::size_t>(t)];
    for (int i = 0; i < static_cast<int>(placements.size()); ++i) {
      int& at = next_position[static_cast<std::size_t>(placements[static_cast<std::size_t>(i)].grid)];
      placements_[static_cast<std::size_t>(at++)] = {t, i};
    }
  }
}

std::span<const RankIndex::GridPosition> RankIndex::positions(Rank rank) const {
  if (rank.value < 0 || rank.value >= num_ranks()) return {};
  const auto r = static_cast<std::size_t>(rank.value);
  return std::span(positions_)
      .subspan(static_cast<std::size_t>(first_position_[r]),
               static_cast<std::size_t>(first_position_[r + 1] - first_position_[r]));
}

std::span<const RankIndex::PlacementRef> RankIndex::placements_on(int grid) const {
  const auto g = static_cast<std::size_t>(grid);
  return std::span(placements_)
      .subspan(static_cast<std::size_t>(first_placement_[g]),
               static_cast<std::size_t>(first_placement_[g + 1] - first_placement_[g]));
}

std::vector<TensorBox> boxes_of(const Layout& layout, const RankIndex& index, Rank rank) {
  std::vector<TensorBox> boxes;
  const auto positions = index.positions(rank);
  for (const RankIndex::GridPosition& position : positions)
    for (const RankIndex::PlacementRef& ref : index.placements_on(position.grid)) {
      const auto t = static_cast<std::size_t>(ref.tensor);
      const Box box =
          box_of_shard(layout.tensors[t], layout.placements[t][static_cast<std::size_t>(ref.index)],
                       layout.grids[static_cast<std::size_t>(position.grid)], position.shard, position.part);
      if (!box.is_empty()) boxes.push_back({ref.tensor, box});
    }
  const auto comes_before = [](const TensorBox& a, const TensorBox& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.box < b.box;
  };
  // Sorting is needed only if a rank is in several grids, or a tensor has several placements on one grid.
  if (!std::is_sorted(boxes.begin(), boxes.end(), comes_before))
    std::sort(boxes.begin(), boxes.end(), comes_before);
  boxes.erase(std::unique(boxes.begin(), boxes.end()), boxes.end());
  return boxes;
}

Bytes bytes_of(const Layout& layout, const RankIndex& index, Rank rank) {
  Bytes sum;
  for (const TensorBox& tensor_box : boxes_of(layout, index, rank))
    sum += Bytes(tensor_box.box.num_elements() *
                 layout.tensors[static_cast<std::size_t>(tensor_box.tensor)].bytes_per_element);
  return sum;
}

}  // namespace optimus
