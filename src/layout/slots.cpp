// Numbers the slots of one tensor, finds slots by region, and stores sets of slots. Cells are in cells.cpp.
#include "layout/slots.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {
namespace {

Span rows_of_part(const Shape& shape, const Partition& partition, int part) {
  return partition.split_dim == 0 ? partition.parts[static_cast<std::size_t>(part)] : Span{0, shape[0]};
}

// The shards of a part that intersect `rows`, as a range [begin, end) of shard indices.
Span intersecting_shards(const Span& part_rows, int num_shards, const Span& rows) {
  const Span clipped{std::max(rows.begin, part_rows.begin), std::min(rows.end, part_rows.end)};
  if (clipped.begin >= clipped.end) return {};
  if (num_shards == 1) return {0, 1};
  const std::int64_t block = (part_rows.size() + num_shards - 1) / num_shards;
  return {(clipped.begin - part_rows.begin) / block, (clipped.end - part_rows.begin + block - 1) / block};
}

// Calls use(part, shards) for every part that intersects the region.
template <typename Use>
void for_each_part(const Shape& shape, const Partition& partition, const Box& region, const Use& use) {
  for (int part = 0; part < partition.num_parts; ++part) {
    if (partition.split_dim > 0) {
      const Span& columns = partition.parts[static_cast<std::size_t>(part)];
      const Span& region_columns = region[partition.split_dim];
      if (columns.begin >= region_columns.end || columns.end <= region_columns.begin || columns.size() == 0)
        continue;
    }
    const Span shards =
        intersecting_shards(rows_of_part(shape, partition, part), partition.num_shards, region[0]);
    if (shards.size() > 0) use(part, shards);
  }
}

}  // namespace

int Slots::num_slots() const {
  if (partitions.empty()) return 0;
  const Partition& last = partitions.back();
  return last.first_slot + last.num_parts * last.num_shards;
}

const Partition& Slots::partition_of(int slot) const {
  std::size_t p = 0;
  while (p + 1 < partitions.size() && partitions[p + 1].first_slot <= slot) ++p;
  return partitions[p];
}

Box Slots::box(int slot) const {
  const Partition& partition = partition_of(slot);
  const int part = (slot - partition.first_slot) / partition.num_shards;
  const int shard = (slot - partition.first_slot) % partition.num_shards;
  Box box(shape);
  if (partition.split_dim >= 0) box[partition.split_dim] = partition.parts[static_cast<std::size_t>(part)];
  const Span own_span = shard_span(box[0].size(), partition.num_shards, shard);
  box[0] = {box[0].begin + own_span.begin, box[0].begin + own_span.end};
  return box;
}

bool Slots::has_same_splits(const Slots& other) const {
  return shape == other.shape &&
         std::equal(partitions.begin(), partitions.end(), other.partitions.begin(), other.partitions.end(),
                    [](const Partition& a, const Partition& b) { return a.has_same_splits(b); });
}

Slots slots_of(const Layout& layout, int tensor) {
  Slots slots{layout.tensors[static_cast<std::size_t>(tensor)].shape, {}};
  for (const Placement& placement : layout.placements[static_cast<std::size_t>(tensor)]) {
    const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(placement.grid)];
    const int num_parts = placement.split_dim < 0 ? 1 : grid.num_parts;
    Partition partition{placement.split_dim, placement.parts, grid.num_shards, num_parts, 0, {}};
    const auto match = std::find_if(slots.partitions.begin(), slots.partitions.end(),
                                    [&](const Partition& known) { return known.has_same_splits(partition); });
    if (match != slots.partitions.end()) {
      match->grids.push_back(placement.grid);
      continue;
    }
    partition.first_slot = slots.num_slots();
    partition.grids = {placement.grid};
    slots.partitions.push_back(std::move(partition));
  }
  return slots;
}

int slot_of(const Partition& partition, const RankIndex::GridPosition& position) {
  if (std::find(partition.grids.begin(), partition.grids.end(), position.grid) == partition.grids.end())
    return -1;
  const int part = partition.split_dim < 0 ? 0 : position.part;
  return partition.first_slot + part * partition.num_shards + position.shard;
}

void append_holders(const Slots& slots, int slot, const Layout& layout, std::vector<Rank>& ranks) {
  const Partition& partition = slots.partition_of(slot);
  const int part = (slot - partition.first_slot) / partition.num_shards;
  const int shard = (slot - partition.first_slot) % partition.num_shards;
  for (const int g : partition.grids) {
    const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(g)];
    const int end = partition.split_dim < 0 ? grid.num_parts : part + 1;
    for (int replica = 0; replica < grid.num_replicas; ++replica)
      for (int p = part; p < end; ++p) ranks.push_back(grid.at(replica, shard, p));
  }
}

void find_slots(const Slots& slots, const Box& region, std::vector<SlotBox>& result) {
  for (const Partition& partition : slots.partitions)
    for_each_part(slots.shape, partition, region, [&](int part, const Span& shards) {
      for (std::int64_t shard = shards.begin; shard < shards.end; ++shard) {
        const int slot = partition.first_slot + part * partition.num_shards + static_cast<int>(shard);
        if (const auto clipped = intersect(slots.box(slot), region)) result.push_back({slot, *clipped});
      }
    });
}

SlotCount count_slots(const Slots& slots, const Box& region, int slot) {
  SlotCount count;
  for (const Partition& partition : slots.partitions)
    for_each_part(slots.shape, partition, region, [&](int part, const Span& shards) {
      const std::int64_t first = partition.first_slot + part * partition.num_shards + shards.begin;
      count.total += static_cast<int>(shards.size());
      count.num_before += static_cast<int>(std::clamp<std::int64_t>(slot - first, 0, shards.size()));
    });
  return count;
}

int SlotSets::intern(std::span<const int> slots) {
  std::size_t hash = slots.size();
  for (const int slot : slots) hash = (hash ^ static_cast<std::size_t>(slot)) * 0x9e3779b97f4a7c15ULL + 1;
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (std::ranges::equal((*this)[it->second], slots)) return it->second;
  slots_.insert(slots_.end(), slots.begin(), slots.end());
  begin_of_.push_back(static_cast<int>(slots_.size()));
  by_hash_.emplace(hash, size() - 1);
  return size() - 1;
}

std::span<const int> SlotSets::operator[](int set) const {
  const auto s = static_cast<std::size_t>(set);
  return std::span(slots_).subspan(static_cast<std::size_t>(begin_of_[s]),
                                   static_cast<std::size_t>(begin_of_[s + 1] - begin_of_[s]));
}

}  // namespace optimus
