// Storage: how an engine lays the boxes that a rank holds into its buffers. Layouts speak of canonical
// tensors (q, k, v, gate, up apart; no padding); storage says where each of them is in memory:
//
//   fused        q | k | v, or gate | up, are row blocks of one matrix, so that one product computes them
//   transposed   a matrix stored [in, out]
//   padded       row counts rounded up; shards of one tensor of equal size, because gathers want that
//   cast         the buffer's own number type
//
//     block.1 (bf16)   +-----------------+ 0
//                      | q   rows 0:4    |
//                      | k   rows 4:6    |   one matrix of 8 rows, row_stride 5, the last row padding
//                      | v   rows 6:7    |
//                      | (padding)       |
//                      +-----------------+ 256-byte boundary
//                      | o (transposed)  |
//                      +-----------------+
//
// One flat buffer for each block of the model and number type. Element (row, column) of an entry's box,
// counted from the box's corner, is element offset + row * row_stride + column of its buffer; with
// is_transposed, offset + column * row_stride + row. A box of more than two dimensions has all but the first
// as its columns.
//
// Pure values. copy_runs is how movers read and write a storage. Read next: layout/diff.h, what moves.
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
  std::int64_t num_elements = 0;  // its bytes are a multiple of the alignment
  bool operator==(const StorageBuffer&) const = default;
};

struct StorageEntry {
  int tensor = 0;
  Box box;  // what of the tensor; may be empty (a shard beyond the end), it still has its padded place
  int buffer = 0;
  std::int64_t offset = 0;      // in elements of the buffer
  std::int64_t row_stride = 0;  // likewise
  bool is_transposed = false;
  bool operator==(const StorageEntry&) const = default;
};

struct Storage {
  std::vector<StorageBuffer> buffers;
  std::vector<StorageEntry> entries;  // by tensor
  bool operator==(const Storage&) const = default;
};

struct StorageSpec {
  // Tensors, of one block, number type and row width, that become row blocks of one matrix, in this order.
  // Those that a rank does not hold are left out.
  std::vector<std::vector<int>> fusions = {};
  std::vector<int> transposed = {};  // tensors of two dims; for a fused one, all of its fusion
  // [tensor]; empty: all fp32.
  std::vector<StorageType> types = {};
  int row_multiple = 1;  // rows of a matrix, after fusion, are rounded up to a multiple of it
  int alignment = 256;   // bytes, of every matrix
};

// The storage of one rank. Ranks that differ only in their shard (or replica) get the same offsets and buffer
// sizes. Throws UserError, naming the tensor, when the spec asks for what cannot be.
Storage build_storage(const Layout& layout, const RankIndex& index, Rank rank, const StorageSpec& spec);

// A contiguous piece of a buffer. Its element i is element box_offset + i * box_stride of the sub-box,
// row-major.
struct CopyRun {
  std::int64_t offset = 0, length = 0;
  std::int64_t box_offset = 0, box_stride = 1;
  bool operator==(const CopyRun&) const = default;
};
// The pieces of the buffer that hold a sub-box of the entry's box: as few as possible when not transposed,
// one for each column when transposed. Together they hold every element once.
std::vector<CopyRun> copy_runs(const StorageEntry& entry, const Box& sub_box);

// The first two entries that share memory, or one that leaves its buffer (then both are that one).
struct StorageOverlap {
  std::size_t first = 0, second = 0;
};
std::optional<StorageOverlap> find_overlap(const Storage& storage);

}  // namespace optimus
