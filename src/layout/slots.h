// Slots: the placements of one tensor in the form that the algorithms of this folder use.
//
// A slot is the box of the tensor that some (shard, part) holds. Its holders are all ranks that hold exactly
// this box. Groups that split a tensor in the same way (pipelines of the same width) form one partition with
// more holders, so the number of slots depends on how the tensor is split, not on the number of pipelines.
//
//     partition 0: 2 parts             partition 1: 1 part, 2 shards
//     +--------+--------+              +-----------------+
//     | slot 0 | slot 1 |              |     slot 2      |
//     |        |        |              +-----------------+
//     |        |        |              |     slot 3      |
//     +--------+--------+              +-----------------+
//
// If several partitions (or overlapping parts) hold a tensor, cells partition its elements by the set of
// slots that contain them:
//
//     +--------+--------+
//     | {0, 2} | {1, 2} |
//     +--------+--------+
//     | {0, 3} | {1, 3} |
//     +--------+--------+
//
// Internal to src/layout. verify() does not use slots, so it can detect mistakes in them.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "layout/layout.h"

namespace optimus {

// One way of splitting a tensor. The slot of (part, shard) is first_slot + part * num_shards + shard.
struct Partition {
  int split_dim = -1;
  std::vector<Span> parts;            // empty if split_dim is -1
  int num_shards = 1, num_parts = 1;  // num_parts is 1 if split_dim is -1
  int first_slot = 0;
  std::vector<int> grids;  // grids on which the tensor is split in this way

  bool has_same_splits(const Partition& other) const {
    return split_dim == other.split_dim && num_shards == other.num_shards && num_parts == other.num_parts &&
           parts == other.parts;
  }
};

struct Slots {
  Shape shape;
  std::vector<Partition> partitions;

  int num_slots() const;
  const Partition& partition_of(int slot) const;
  Box box(int slot) const;  // may be empty
  // Whether both tensors are split in the same way, regardless of the ranks that hold them.
  bool has_same_splits(const Slots& other) const;
};

Slots slots_of(const Layout& layout, int tensor);
// The slot of a grid position, or -1 if the grid is not in the partition.
int slot_of(const Partition& partition, const RankIndex::GridPosition& position);
// Appends the holders of a slot. A rank that is in several grids of the partition may be appended more than
// once.
void append_holders(const Slots& slots, int slot, const Layout& layout, std::vector<Rank>& ranks);

struct SlotBox {
  int slot = 0;
  Box box;
};
// Appends the slots that intersect `region`, each clipped to it, in ascending order. O(parts + slots found).
void find_slots(const Slots& slots, const Box& region, std::vector<SlotBox>& result);
// The number of slots that find_slots would append, and how many of them precede `slot`.
struct SlotCount {
  int total = 0, num_before = 0;
};
SlotCount count_slots(const Slots& slots, const Box& region, int slot);

// Stores each distinct ascending list of slots once, and identifies it by an index.
class SlotSets {
 public:
  int intern(std::span<const int> slots);
  std::span<const int> operator[](int set) const;
  int size() const { return static_cast<int>(begin_of_.size()) - 1; }

 private:
  std::vector<int> begin_of_{0}, slots_;
  std::unordered_multimap<std::size_t, int> by_hash_;
};

struct SlotCell {
  Box box;
  int holders = 0;  // index into the SlotSets: the slots that contain the cell
};
// Splits `region` along all edges of the slots of `holders`, and also of `other_slots` unless it is null.
// Appends the non-empty cells in lexicographic order. A partition splits dimension by dimension, so the cells
// of a sub-region are the clipped cells of the whole region.
void append_cells(const Slots& holders, const Slots* other_slots, const Box& region, SlotSets& sets,
                  std::vector<SlotCell>& cells);

}  // namespace optimus
