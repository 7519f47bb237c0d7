// Layout: who holds which piece of which tensor.
//
// A tensor may be held by several groups of devices (one per pipeline). A group is a grid of ranks,
//
//     replicas x shards x parts
//
// parts cut one dimension (tensor parallel: heads, ffn columns, vocabulary rows), shards then cut dimension 0
// of each part (ZeRO, FSDP), replicas hold the same. All three may be uneven. A layout is stored in this
// structured form, never as one box per rank, so that it costs the same for 8 and for 100,000 devices; boxes
// are computed when asked for.
//
// Example: a 4 x 6 matrix, one group of 2 replicas x 2 shards x 2 parts, cut_dim 1, parts 0:3 and 3:6:
//
//             columns 0:3        3:6
//   rows 0:2  ranks 0 and 4   1 and 5       shard 0
//        2:4  ranks 2 and 6   3 and 7       shard 1
//
// Read next: layout/diff.h (from one layout to another), layout/sync.h (which ranks add up which gradients).
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

// How one group holds one tensor.
struct Placement {
  int grid = 0;      // index into Layout::grids
  int cut_dim = -1;  // -1: every part holds the whole
  // What each part holds of cut_dim, num_parts entries (empty when cut_dim is -1). Together they cover the
  // dimension; they may overlap or be equal (key/value heads when tp is larger than their number), and may be
  // empty.
  std::vector<Span> parts;
  bool operator==(const Placement&) const = default;
};

// A tensor as far as moving it is concerned. bytes_per_element counts everything that lies in the same way,
// for instance master, first and second moment in fp32: 12.
struct TensorInfo {
  std::string name;
  Shape shape;
  int bytes_per_element = 0;
  int block = 0;  // of the model, so that moves can go layer by layer
  bool operator==(const TensorInfo&) const = default;
};

struct Layout {
  std::vector<TensorInfo> tensors;
  std::vector<DeviceGrid> grids;
  std::vector<std::vector<Placement>> placements;  // [tensor][group]
  bool operator==(const Layout&) const = default;
};

// Ranks are used as indices; whoever names a larger one has made a mistake.
inline constexpr int kMaxRanks = 1 << 24;

// Throws UserError, naming the tensor or grid, the value and what would be right, unless: sizes agree,
// tensors have 1 to 4 dims and fit 63 bits of bytes, grids list each rank once, parts lie inside the cut
// dimension and cover it. The other functions of this folder take this for granted; diff() and sync() check
// it themselves.
void validate(const Layout& layout);
// As validate for both; and they list the same tensors (name, shape, bytes an element) in the same order.
void validate_pair(const Layout& from, const Layout& to);

// n things over `parts`, sizes differing by at most one, larger ones first.
std::vector<Span> split_evenly(std::int64_t n, int parts);
// n things over parts in proportion to `weights` (largest remainders, ties to the lower part); every thing is
// given to exactly one part. Throws UserError unless the weights are finite, not negative and one is
// positive.
std::vector<Span> split_by_weight(std::int64_t n, const std::vector<double>& weights);
// Shard `index` of [0, n): blocks of ceil(n / shards), so that all but the last used shard are equal; may be
// empty.
Span shard_span(std::int64_t n, int shards, int index);

// The box that (shard, part) of a group holds. May be empty.
Box held_box(const TensorInfo& tensor, const Placement& placement, const DeviceGrid& grid, int shard,
             int part);

struct HeldBox {
  int tensor = 0;
  Box box;
  bool operator==(const HeldBox&) const = default;
};

// One more than the highest rank that a grid names.
int num_ranks(const Layout& layout);

// Where a rank stands in the grids of a layout, and what lies on them; built once, O(ranks + placements).
// Does not refer to the layout.
class RankIndex {
 public:
  struct Seat {
    int grid, replica, shard, part;
    bool operator==(const Seat&) const = default;
  };
  // placements[tensor][index]
  struct PlacementRef {
    int tensor, index;
  };
  explicit RankIndex(const Layout& layout);
  // In the order of the grids; nothing for a rank that the layout does not name.
  std::span<const Seat> seats(Rank rank) const;
  std::span<const PlacementRef> placements_on(int grid) const;  // by tensor
  int num_ranks() const { return static_cast<int>(first_seat_.size()) - 1; }

 private:
  std::vector<int> first_seat_;  // [rank] into seats_, and the end
  std::vector<Seat> seats_;
  std::vector<int> first_placement_;  // [grid] into placements_, and the end
  std::vector<PlacementRef> placements_;
};

// Everything one rank holds, in tensor order, without empty boxes; a tensor that it holds through several
// groups is listed once per distinct box (in their order). O(what it holds).
std::vector<HeldBox> boxes_of(const Layout& layout, const RankIndex& index, Rank rank);
Bytes bytes_of(const Layout& layout, const RankIndex& index, Rank rank);

}  // namespace optimus
