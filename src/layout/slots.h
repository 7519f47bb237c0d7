// Slots: the placements of one tensor in the form that the algorithms of this folder work on.
//
// A slot is one piece of the tensor as some (shard, part) holds it; its holders are all ranks that hold
// exactly that piece. Groups that cut a tensor in the same way (pipelines of the same width) are one
// partition with more holders, so the number of slots depends on how a tensor is cut, not on how many
// pipelines hold it.
//
//     partition 0: 2 parts             partition 1: 1 part, 2 shards
//     +--------+--------+              +-----------------+
//     | slot 0 | slot 1 |              |     slot 2      |
//     |        |        |              +-----------------+
//     |        |        |              |     slot 3      |
//     +--------+--------+              +-----------------+
//
// Where several partitions (or overlapping parts) hold a tensor, its elements are told apart by the set of
// slots that contain them: cells.
//
//     +--------+--------+
//     | {0, 2} | {1, 2} |
//     +--------+--------+
//     | {0, 3} | {1, 3} |
//     +--------+--------+
//
// Internal to src/layout. verify() does not use it, so that a mistake here cannot hide itself.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "layout/layout.h"

namespace optimus {

// One way of cutting a tensor. Slots are numbered first_slot + part * num_shards + shard.
struct Partition {
  int cut_dim = -1;
  std::vector<Span> parts;            // empty when cut_dim is -1
  int num_shards = 1, num_parts = 1;  // one part when cut_dim is -1: all parts of the grid hold the same
  int first_slot = 0;
  std::vector<int> grids;  // that hold the tensor in this way

  bool cuts_like(const Partition& other) const {
    return cut_dim == other.cut_dim && num_shards == other.num_shards && num_parts == other.num_parts &&
           parts == other.parts;
  }
};

struct Slots {
  Shape shape;
  std::vector<Partition> partitions;

  int num_slots() const;
  const Partition& partition_of(int slot) const;
  Box box(int slot) const;  // may be empty
  // A tensor cut in the same way, whoever holds it.
  bool cuts_like(const Slots& other) const;
};

Slots slots_of(const Layout& layout, int tensor);
// The slot that a seat holds, or -1 when the seat's grid is none of the partition's.
int slot_of(const Partition& partition, const RankIndex::Seat& seat);
// Appends who holds a slot; a rank that sits in several grids of the partition may come twice.
void append_holders(const Slots& slots, int slot, const Layout& layout, std::vector<Rank>& ranks);

struct SlotBox {
  int slot = 0;
  Box box;
};
// Appends the slots that meet `region`, clipped to it, in ascending order. O(parts + found).
void find_slots(const Slots& slots, const Box& region, std::vector<SlotBox>& found);
// How many find_slots would give, and how many of them come before `slot`.
struct SlotCount {
  int all = 0, before = 0;
};
SlotCount count_slots(const Slots& slots, const Box& region, int slot);

// Ascending lists of slots, each stored once.
class SlotSets {
 public:
  int intern(std::span<const int> slots);
  std::span<const int> operator[](int set) const;
  int size() const { return static_cast<int>(first_.size()) - 1; }

 private:
  std::vector<int> first_{0}, slots_;
  std::unordered_multimap<std::size_t, int> by_hash_;
};

struct SlotCell {
  Box box;
  int holders = 0;  // index into the SlotSets
};
// Appends `region` cut along all edges of slots of `holders`, and also of `others` when given, in
// lexicographic order. Empty cells are left out. Since a partition cuts dimension by dimension, the cells of
// a smaller region are the cells of a larger one, clipped.
void append_cells(const Slots& holders, const Slots* others, const Box& region, SlotSets& sets,
                  std::vector<SlotCell>& cells);

}  // namespace optimus
