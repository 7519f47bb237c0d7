// Layout of the state of one block on one device. It specifies which part of each tensor is on the device
// (tensor parallelism), and which rows of that part are the device's shard (ZeRO). Whole buffers contain the
// parts. Sharded buffers contain the shards, padded so that all members of a shard group have the same
// offsets. Gathers and reductions use buffers in which the members' shards are concatenated:
//
//   whole          | q rows 0:8        | k rows 0:4 | norm |              num_shards 2
//   shard 0        | q 0:4 | k 0:2 | norm 0:1 |
//   exchange       | q 0:4 | k 0:2 | norm 0:1 | q 4:8 | k 2:4 | norm 1:2 |
//
// This file has plain data, and functions that convert between the two layouts. Read next: parameters.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "layout/storage.h"
#include "plan/layouts.h"

namespace optimus {

// One tensor of a block on this device.
struct LocalTensor {
  int tensor = 0;  // index into logical_tensors(model)
  std::string name;
  Box box;                                        // the device's tensor-parallel part of the logical tensor
  std::int64_t offset = 0;                        // offset of the part in whole buffers, in elements
  std::int64_t rows = 0, row = 0;                 // number of rows of the part, and elements per row
  std::int64_t shard_offset = 0, shard_rows = 0;  // in sharded buffers: offset in elements; rows with padding
  // Rows of the part that this device contributes to sums over all elements of the model, such as the
  // gradient norm, in which every element must count once.
  Span counted{};
  bool has_weight_decay = false;
  bool is_per_head = false;
  bool operator==(const LocalTensor&) const = default;
};

struct BlockShape {
  std::vector<LocalTensor> tensors;
  std::int64_t whole_elements = 0, shard_elements = 0;
  int zero = 0, num_shards = 1, shard = 0;
  bool is_sharded(StateKind kind) const;
  std::int64_t elements(StateKind kind) const { return is_sharded(kind) ? shard_elements : whole_elements; }
  // Returns the rows of the part that are in this device's shard, which are all rows if num_shards is 1.
  Span own_rows(const LocalTensor& tensor) const;
};

// Returns the shape of every block of the model, [block]. The shape is empty if the block is not on the
// device.
std::vector<BlockShape> block_shapes(const Plan& plan, const ModelSpec& model, int device);
// Returns, for each block, the shape of the shard whose update this device repeats (Plan::copy_distance), as
// on the device that owns the shard. The shape is empty if the device repeats no update.
std::vector<BlockShape> copied_shapes(const Plan& plan, const ModelSpec& model, int device);

// A contiguous range of this device's state, with its offsets in sharded and in whole buffers and its length,
// in elements.
struct StateRange {
  std::int64_t shard = 0, whole = 0, length = 0;
  bool has_weight_decay = false;
};
// Returns the state that this device updates, in as few ranges as possible.
std::vector<StateRange> update_ranges(const BlockShape& shape);
// Returns the state that this device contributes to the gradient norm (LocalTensor::counted). In these
// ranges, only `shard` and `length` are valid for all elements.
std::vector<StateRange> counted_ranges(const BlockShape& shape);

// Converts between a whole buffer and the concatenated shards of all members, [num_shards * shard_elements].
void to_shards(const BlockShape& shape, const at::Tensor& whole, at::Tensor& shards);
void from_shards(const BlockShape& shape, const at::Tensor& shards, at::Tensor& whole);

}  // namespace optimus
