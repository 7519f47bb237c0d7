// Builds the storage of a rank. Read access is in copy_runs.cpp.
#include "layout/storage.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// A box of the rank and the number of rows reserved for it, which is equal for all shards.
struct PaddedBox {
  int tensor = 0;
  Box box;
  std::int64_t padded_rows = 0;
  std::int64_t columns = 1;  // elements per row
};

// Like boxes_of(), but includes empty boxes and also returns the number of rows of the largest shard.
std::vector<PaddedBox> boxes_with_padding(const Layout& layout, const RankIndex& index, Rank rank) {
  std::vector<PaddedBox> boxes;
  for (int t = 0; t < static_cast<int>(layout.tensors.size()); ++t) {
    const TensorInfo& tensor = layout.tensors[static_cast<std::size_t>(t)];
    for (const Placement& placement : layout.placements[static_cast<std::size_t>(t)])
      for (const RankIndex::GridPosition& position : index.positions(rank)) {
        if (position.grid != placement.grid) continue;
        const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(position.grid)];
        PaddedBox padded_box{t, box_of_shard(tensor, placement, grid, position.shard, position.part), 0, 1};
        padded_box.padded_rows = box_of_shard(tensor, placement, grid, 0, position.part)[0].size();
        for (int d = 1; d < tensor.shape.num_dims; ++d) padded_box.columns *= padded_box.box[d].size();
        const bool is_known = std::any_of(boxes.begin(), boxes.end(), [&](const PaddedBox& known) {
          return known.tensor == t && known.box == padded_box.box;
        });
        if (!is_known) boxes.push_back(padded_box);
      }
  }
  return boxes;
}

class StorageBuilder {
 public:
  StorageBuilder(const Layout& layout, const StorageSpec& spec) : layout_(layout), spec_(spec) {
    if (spec.row_multiple < 1)
      throw UserError("storage row multiple: expected at least 1, got {}", spec.row_multiple);
    if (spec.alignment < 1 || (spec.alignment & (spec.alignment - 1)) != 0)
      throw UserError("storage alignment: expected a power of two, got {} bytes", spec.alignment);
    if (!spec.types.empty() && spec.types.size() != layout.tensors.size())
      throw UserError("the storage spec has types for {} tensors, but the layout has {} tensors",
                      spec.types.size(), layout.tensors.size());
    is_transposed_.resize(layout.tensors.size());
    fusion_of_.resize(layout.tensors.size(), -1);
    for (const int t : spec.transposed) {
      check_tensor(t);
      if (info(t).shape.num_dims != 2)
        throw UserError("tensor {} has {} dims and cannot be transposed", name(t), info(t).shape.num_dims);
      is_transposed_[static_cast<std::size_t>(t)] = true;
    }
    for (int f = 0; f < static_cast<int>(spec.fusions.size()); ++f) check_fusion(f);
  }

  Storage build(const std::vector<PaddedBox>& boxes) {
    std::vector<bool> is_done(boxes.size());
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      if (is_done[i]) continue;
      std::vector<const PaddedBox*> matrix;
      for (const std::size_t j : boxes_of_matrix(boxes, i)) {
        if (is_done[j]) continue;
        matrix.push_back(&boxes[j]);
        is_done[j] = true;
      }
      place_matrix(matrix);
    }
    for (StorageBuffer& buffer : storage_.buffers)
      buffer.num_elements = aligned(buffer.num_elements, buffer.type);
    std::stable_sort(storage_.entries.begin(), storage_.entries.end(),
                     [](const StorageEntry& a, const StorageEntry& b) { return a.tensor < b.tensor; });
    return std::move(storage_);
  }

 private:
  const TensorInfo& info(int t) const { return layout_.tensors[static_cast<std::size_t>(t)]; }
  std::string name(int t) const { return in_quotes(info(t).name); }
  StorageType type(int t) const {
    return spec_.types.empty() ? StorageType::fp32 : spec_.types[static_cast<std::size_t>(t)];
  }
  void check_tensor(int t) const {
    if (t < 0 || t >= static_cast<int>(layout_.tensors.size()))
      throw UserError("the storage spec refers to tensor {}, but the layout has {} tensors", t,
                      layout_.tensors.size());
  }

  void check_fusion(int f) {
    const std::vector<int>& fusion = spec_.fusions[static_cast<std::size_t>(f)];
    for (const int t : fusion) {
      check_tensor(t);
      if (std::exchange(fusion_of_[static_cast<std::size_t>(t)], f) >= 0)
        throw UserError("tensor {} is fused twice", name(t));
      const int first = fusion[0];
      if (info(t).block != info(first).block || type(t) != type(first) ||
          is_transposed_[static_cast<std::size_t>(t)] != is_transposed_[static_cast<std::size_t>(first)])
        throw UserError(
            "tensors {} and {} cannot be fused: expected the same block, number type and orientation",
            name(first), name(t));
    }
  }

  // The indices of the boxes in the same matrix as box i: for each tensor of its fusion, the first box.
  std::vector<std::size_t> boxes_of_matrix(const std::vector<PaddedBox>& boxes, std::size_t i) const {
    const int fusion = fusion_of_[static_cast<std::size_t>(boxes[i].tensor)];
    if (fusion < 0) return {i};
    std::vector<std::size_t> result;
    for (const int t : spec_.fusions[static_cast<std::size_t>(fusion)]) {
      const auto match = std::find_if(boxes.begin(), boxes.end(),
                                      [&](const PaddedBox& candidate) { return candidate.tensor == t; });
      if (match == boxes.end()) continue;
      if (match->columns != boxes[i].columns)
        throw UserError("tensors {} and {} cannot be fused: their rows are {} and {} wide",
                        name(boxes[i].tensor), name(t), boxes[i].columns, match->columns);
      result.push_back(static_cast<std::size_t>(match - boxes.begin()));
    }
    // A second box of a fused tensor (held through another group) is stored separately.
    if (std::find(result.begin(), result.end(), i) == result.end()) return {i};
    return result;
  }

  std::int64_t aligned(std::int64_t elements, StorageType number_type) const {
    const int bytes = bytes_of(number_type);
    return round_up(elements * bytes, std::max(spec_.alignment, bytes)) / bytes;
  }

  int buffer_of(int t) {
    const auto [it, is_new] =
        buffer_numbers_.try_emplace({info(t).block, type(t)}, static_cast<int>(storage_.buffers.size()));
    if (is_new)
      storage_.buffers.push_back({fmt::format("block.{}.{}", info(t).block, text(type(t))), type(t), 0});
    return it->second;
  }

  void place_matrix(const std::vector<const PaddedBox*>& matrix) {
    const int number = buffer_of(matrix[0]->tensor);
    StorageBuffer& buffer = storage_.buffers[static_cast<std::size_t>(number)];
    std::int64_t rows = 0;
    for (const PaddedBox* padded_box : matrix) rows += padded_box->padded_rows;
    rows = round_up(rows, spec_.row_multiple);
    const std::int64_t columns = matrix[0]->columns, begin = aligned(buffer.num_elements, buffer.type);
    const bool is_transposed = is_transposed_[static_cast<std::size_t>(matrix[0]->tensor)];
    std::int64_t row = 0;
    for (const PaddedBox* padded_box : matrix) {
      storage_.entries.push_back({padded_box->tensor, padded_box->box, number,
                                  begin + (is_transposed ? row : row * columns),
                                  is_transposed ? rows : columns, is_transposed});
      row += padded_box->padded_rows;
    }
    buffer.num_elements = begin + rows * columns;
  }

  const Layout& layout_;
  const StorageSpec& spec_;
  std::vector<bool> is_transposed_;  // [tensor]
  std::vector<int> fusion_of_;       // [tensor]; -1 if not fused
  std::map<std::pair<int, StorageType>, int> buffer_numbers_;
  Storage storage_;
};

}  // namespace

int bytes_of(StorageType type) {
  switch (type) {
    case StorageType::fp64:
      return 8;
    case StorageType::fp32:
      return 4;
    case StorageType::bf16:
    case StorageType::fp16:
      return 2;
    case StorageType::fp8:
      return 1;
  }
  return 0;
}

std::string text(StorageType type) {
  switch (type) {
    case StorageType::fp64:
      return "fp64";
    case StorageType::fp32:
      return "fp32";
    case StorageType::bf16:
      return "bf16";
    case StorageType::fp16:
      return "fp16";
    case StorageType::fp8:
      return "fp8";
  }
  return "";
}

Storage build_storage(const Layout& layout, const RankIndex& index, Rank rank, const StorageSpec& spec) {
  return StorageBuilder(layout, spec).build(boxes_with_padding(layout, index, rank));
}

}  // namespace optimus
