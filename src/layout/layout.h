// Layout: specifies which rank holds which piece of which tensor.
//
// Several groups of devices may hold a tensor (one group per pipeline). A group is a grid of ranks,
//
//     replicas x shards x parts
//
// Parts split one dimension (tensor parallel: heads, ffn columns, vocabulary rows), shards then split
// dimension 0 of each part (ZeRO, FSDP), and replicas hold the same data. All splits may be uneven. A layout
// is stored in this structured form, never as one box per rank, so that it has the same cost for 8 and for
// 100,000 devices. Boxes are computed on demand.
//
// Example: a 4 x 6 matrix, one group of 2 replicas x 2 shards x 2 parts, split_dim 1, parts 0:3 and 3:6:
//
//             columns 0:3        3:6
//   rows 0:2  ranks 0 and 4   1 and 5       shard 0
//        2:4  ranks 2 and 6   3 and 7       shard 1
//
// Read next: layout/diff.h (from one layout to another), layout/sync.h (which ranks reduce which gradients).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/box.h"
#include "base/units.h"

namespace optimus {

// The ranks of one group, row-major [num_replicas][num_shards][num_parts].
struct DeviceGrid {
  int num_replicas = 1, num_shards = 1, num_parts = 1;
  std::vector<Rank> ranks;

  int size() const { return num_replicas * num_shards * num_parts; }
  Rank at(int replica, int shard, int part) const {
    return ranks[static_cast<std::size_t>((replica * num_shards + shard) * num_parts + part)];
  }
  bool operator==(const DeviceGrid&) const = default;
};

// The placement of one tensor on one group.
struct Placement {
  int grid = 0;        // index into Layout::grids
  int split_dim = -1;  // the dimension that the parts split; -1 if every part holds the whole tensor
  // The range of `split_dim` that each part holds: num_parts entries, or none if `split_dim` is -1. The
  // ranges together cover the dimension. They may be empty, and they may overlap or be equal (as for
  // key/value heads if tp exceeds the number of these heads).
  std::vector<Span> parts;
  bool operator==(const Placement&) const = default;
};

// The properties of a tensor that are relevant for moving it. bytes_per_element is the sum over all data with
// the same placement, for instance 12 for an fp32 master weight and its first and second moments.
struct TensorInfo {
  std::string name;
  Shape shape;
  int bytes_per_element = 0;
  int block = 0;  // the block that contains the tensor, so that moves can proceed layer by layer
  bool operator==(const TensorInfo&) const = default;
};

struct Layout {
  std::vector<TensorInfo> tensors;
  std::vector<DeviceGrid> grids;
  std::vector<std::vector<Placement>> placements;  // [tensor]: one placement per group that holds it
  bool operator==(const Layout&) const = default;
};

// Ranks are used as indices, so ranks of kMaxRanks and above are rejected.
inline constexpr int kMaxRanks = 1 << 24;

// Throws a UserError that names the tensor or grid, the value and the valid values, unless the layout is
// valid: sizes agree, tensors have 1 to 4 dimensions and their bytes fit into 63 bits, no grid lists a rank
// twice, and parts are inside the split dimension and cover it. The other functions of this folder require
// valid layouts; diff() and sync() check them.
void validate(const Layout& layout);
// Validates both layouts, and checks that they list the same tensors (name, shape, bytes per element) in the
// same order.
void validate_pair(const Layout& from, const Layout& to);

// Splits n items into `parts` spans whose sizes differ by at most one; the larger spans are first.
std::vector<Span> split_evenly(std::int64_t n, int parts);
// Splits n items into spans in proportion to `weights`. Items left over after rounding down go to the spans
// with the largest remainders. Ties go to the span with the lower index. Every item is in exactly one span.
// Throws a UserError unless all weights are finite and non-negative and at least one is positive.
std::vector<Span> split_by_weight(std::int64_t n, const std::vector<double>& weights);
// The sub-range of [0, n) that shard `index` holds, which may be empty. Every non-empty shard has ceil(n /
// shards) items, except that the last of them may have fewer.
Span shard_span(std::int64_t n, int shards, int index);

// The box that shard `shard` of part `part` holds in a group. The box may be empty.
Box box_of_shard(const TensorInfo& tensor, const Placement& placement, const DeviceGrid& grid, int shard,
                 int part);

struct TensorBox {
  int tensor = 0;
  Box box;
  bool operator==(const TensorBox&) const = default;
};

// One more than the highest rank in any grid.
int num_ranks(const Layout& layout);

// The positions of each rank in the grids of a layout, and the placements on each grid. Built in O(ranks +
// placements). Keeps no reference to the layout.
class RankIndex {
 public:
  struct GridPosition {
    int grid, replica, shard, part;
    bool operator==(const GridPosition&) const = default;
  };
  // Identifies placements[tensor][index] of a layout.
  struct PlacementRef {
    int tensor, index;
  };
  explicit RankIndex(const Layout& layout);
  // The grid positions of a rank, in the order of the grids. Empty if the rank is not in the layout.
  std::span<const GridPosition> positions(Rank rank) const;
  std::span<const PlacementRef> placements_on(int grid) const;  // in the order of the tensors
  int num_ranks() const { return static_cast<int>(first_position_.size()) - 1; }

 private:
  // [rank]: index of its first entry in positions_. One additional element marks the end.
  std::vector<int> first_position_;
  std::vector<GridPosition> positions_;
  // [grid]: index of its first entry in placements_. One additional element marks the end.
  std::vector<int> first_placement_;
  std::vector<PlacementRef> placements_;
};

// All non-empty boxes of one rank, in tensor order. A tensor that the rank holds through several groups is
// listed once per distinct box, in the order of the boxes. O(size of the result).
std::vector<TensorBox> boxes_of(const Layout& layout, const RankIndex& index, Rank rank);
Bytes bytes_of(const Layout& layout, const RankIndex& index, Rank rank);

}  // namespace optimus
