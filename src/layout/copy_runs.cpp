// Read access to a storage: the contiguous ranges of a sub-box, and the check that no two entries share
// memory.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "layout/storage.h"

namespace optimus {
namespace {

std::vector<CopyRun> transposed_runs(const StorageEntry& entry, const Box& sub_box) {
  std::vector<CopyRun> runs;
  const std::int64_t rows = sub_box[0].size(), columns = sub_box[1].size();
  const std::int64_t first_row = sub_box[0].begin - entry.box[0].begin;
  for (std::int64_t c = 0; c < columns; ++c) {
    const std::int64_t column = sub_box[1].begin - entry.box[1].begin + c;
    runs.push_back({entry.offset + column * entry.row_stride + first_row, rows, c, columns});
  }
  return runs;
}

}  // namespace

std::vector<CopyRun> copy_runs(const StorageEntry& entry, const Box& sub_box) {
  ensure(sub_box.num_dims == entry.box.num_dims && entry.box.contains(sub_box), "{} is not inside {}",
         text(sub_box), text(entry.box));
  if (sub_box.is_empty()) return {};
  if (entry.is_transposed) return transposed_runs(entry, sub_box);
  const int num_dims = sub_box.num_dims;
  // `step` is the memory stride of each dimension. A run consists of the trailing dimensions that are
  // contiguous.
  std::array<std::int64_t, kMaxDims> step{};
  std::int64_t inner = 1;
  for (int d = num_dims - 1; d >= 1; --d)
    step[static_cast<std::size_t>(d)] = inner, inner *= entry.box[d].size();
  step[0] = entry.row_stride;
  int outer_dims = num_dims;  // dimensions [0, outer_dims) are iterated; the others are inside a run
  std::int64_t length = 1;
  while (outer_dims > 0 && step[static_cast<std::size_t>(outer_dims) - 1] == length)
    length *= sub_box[--outer_dims].size();

  std::vector<CopyRun> runs;
  std::array<std::int64_t, kMaxDims> at{};
  const std::int64_t num_runs = sub_box.num_elements() / length;
  for (std::int64_t i = 0; i < num_runs; ++i) {
    std::int64_t offset = entry.offset;
    for (int d = 0; d < num_dims; ++d)
      offset += (sub_box[d].begin - entry.box[d].begin + at[static_cast<std::size_t>(d)]) *
                step[static_cast<std::size_t>(d)];
    runs.push_back({offset, length, i * length, 1});
    for (int d = outer_dims - 1; d >= 0 && ++at[static_cast<std::size_t>(d)] == sub_box[d].size(); --d)
      at[static_cast<std::size_t>(d)] = 0;
  }
  return runs;
}

std::optional<StorageOverlap> find_overlap(const Storage& storage) {
  struct Run {
    int buffer;
    std::int64_t begin, end;
    std::size_t entry;
  };
  std::vector<Run> runs;
  for (std::size_t e = 0; e < storage.entries.size(); ++e) {
    const StorageEntry& entry = storage.entries[e];
    if (entry.buffer < 0 || entry.buffer >= static_cast<int>(storage.buffers.size()))
      return StorageOverlap{e, e};
    for (const CopyRun& run : copy_runs(entry, entry.box)) {
      if (run.offset < 0 ||
          run.offset + run.length > storage.buffers[static_cast<std::size_t>(entry.buffer)].num_elements)
        return StorageOverlap{e, e};
      runs.push_back({entry.buffer, run.offset, run.offset + run.length, e});
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return std::pair(a.buffer, a.begin) < std::pair(b.buffer, b.begin);
  });
  for (std::size_t i = 1; i < runs.size(); ++i)
    if (runs[i].buffer == runs[i - 1].buffer && runs[i].begin < runs[i - 1].end)
      return StorageOverlap{runs[i - 1].entry, runs[i].entry};
  return std::nullopt;
}

}  // namespace optimus
