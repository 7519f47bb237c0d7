// Storage: the placement of a rank's boxes in its memory buffers. Layouts describe canonical tensors (q, k,
// v, gate and up are separate; no padding); the storage specifies where each of them is in memory:
//
//   fused q | k | v, or gate | up, are row blocks of one matrix, so that one GEMM computes them transposed a
//   matrix stored as [in, out] padded row counts are rounded up; shards of one tensor have equal size, as
//   all-gather requires cast each buffer has its own number type
//
//     block.1 (bf16)   +-----------------+ 0
//                      | q   rows 0:4    |
//                      | k   rows 4:6    |   one matrix of 8 rows, row_stride 5, the last row is padding
//                      | v   rows 6:7    |
//                      | (padding)       |
//                      +-----------------+ 256-byte boundary
//                      | o (transposed)  |
//                      +-----------------+
//
// There is one flat buffer for each block of the model and number type. Element (row, column) of an entry's
// box, counted from the corner of the box, is element offset + row * row_stride + column of the buffer. If
// is_transposed is set, it is element offset + column * row_stride + row. In a box of more than two
// dimensions, all dimensions but the first count as columns.
//
// All types are plain values. Code that moves data reads and writes a storage through copy_runs. Read next:
// layout/diff.h (what moves).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout/layout.h"

namespace optimus {

enum class StorageType { fp64, fp32, bf16, fp16, fp8 };
int bytes_of(StorageType type);
std::string text(StorageType type);  // "bf16"

struct StorageBuffer {
  std::string name;  // "block.1.bf16"
  StorageType type = StorageType::fp32;
  std::int64_t num_elements = 0;  // the size in bytes is a multiple of the alignment
  bool operator==(const StorageBuffer&) const = default;
};

struct StorageEntry {
  int tensor = 0;
  // The box may be empty (a shard beyond the end of the tensor), but the entry still occupies its padded
  // space.
  Box box;
  int buffer = 0;
  std::int64_t offset = 0;      // in elements of the buffer
  std::int64_t row_stride = 0;  // in elements of the buffer
  bool is_transposed = false;
  bool operator==(const StorageEntry&) const = default;
};

struct Storage {
  std::vector<StorageBuffer> buffers;
  std::vector<StorageEntry> entries;  // in the order of the tensors
  bool operator==(const Storage&) const = default;
};

struct StorageSpec {
  // Lists of tensors that become row blocks of one matrix, in this order. The tensors of a list must have the
  // same block, number type and row width. Tensors that a rank does not hold are skipped.
  std::vector<std::vector<int>> fusions = {};
  std::vector<int> transposed = {};  // 2-D tensors; either all or none of a fusion
  // The type of each tensor. If empty, all tensors are fp32.
  std::vector<StorageType> types = {};
  int row_multiple = 1;  // the number of rows of a matrix, after fusion, is rounded up to a multiple of this
  int alignment = 256;   // of every matrix, in bytes
};

// The storage of one rank. Ranks that differ only in their shard or replica have the same offsets and buffer
// sizes. Throws a UserError that names the tensor if the spec is invalid.
Storage build_storage(const Layout& layout, const RankIndex& index, Rank rank, const StorageSpec& spec);

// A contiguous range of a buffer. Its element i is element box_offset + i * box_stride of the sub-box in
// row-major order.
struct CopyRun {
  std::int64_t offset = 0, length = 0;
  std::int64_t box_offset = 0, box_stride = 1;
  bool operator==(const CopyRun&) const = default;
};
// The ranges of the buffer that contain a sub-box of the entry's box: one range per column if the entry is
// transposed, otherwise as few ranges as possible. Together the ranges contain every element once.
std::vector<CopyRun> copy_runs(const StorageEntry& entry, const Box& sub_box);

// The indices (in Storage::entries) of the first two entries that share memory. The two indices are equal if
// a single entry exceeds its buffer.
struct StorageOverlap {
  std::size_t first_entry = 0, second_entry = 0;
};
std::optional<StorageOverlap> find_overlap(const Storage& storage);

}  // namespace optimus
