// Implements validate and validate_pair, which ensure the properties that the rest of the folder relies on.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "layout/layout.h"

namespace optimus {
namespace {

void validate_tensor(const TensorInfo& tensor) {
  if (tensor.shape.num_dims < 1 || tensor.shape.num_dims > kMaxDims)
    throw UserError("tensor {}: expected 1 to {} dims, got {}", in_quotes(tensor.name), kMaxDims,
                    tensor.shape.num_dims);
  if (tensor.bytes_per_element < 1)
    throw UserError("tensor {}: expected at least 1 byte per element, got {}", in_quotes(tensor.name),
                    tensor.bytes_per_element);
  std::int64_t bytes = tensor.bytes_per_element;
  for (int d = 0; d < tensor.shape.num_dims; ++d) {
    const std::int64_t size = tensor.shape[d];
    if (size < 0)
      throw UserError("tensor {}: expected non-negative sizes, got shape {}", in_quotes(tensor.name),
                      text(tensor.shape));
    if (size > 0 && bytes > std::numeric_limits<std::int64_t>::max() / size)
      throw UserError("the size in bytes of tensor {} of shape {} does not fit into 63 bits",
                      in_quotes(tensor.name), text(tensor.shape));
    bytes *= std::max<std::int64_t>(size, 1);
  }
}

// `last_grid_of[rank]` is the last grid that was found to contain the rank.
void validate_grid(const DeviceGrid& grid, int g, std::vector<int>& last_grid_of) {
  if (grid.num_replicas < 1 || grid.num_shards < 1 || grid.num_parts < 1)
    throw UserError("grid {}: expected at least 1 x 1 x 1, got {} x {} x {}", g, grid.num_replicas,
                    grid.num_shards, grid.num_parts);
  const std::int64_t replicas_and_shards = static_cast<std::int64_t>(grid.num_replicas) * grid.num_shards;
  if (replicas_and_shards > kMaxRanks || replicas_and_shards * grid.num_parts > kMaxRanks)
    throw UserError("grid {} is {} x {} x {}, more than {} ranks", g, grid.num_replicas, grid.num_shards,
                    grid.num_parts, kMaxRanks);
  if (static_cast<std::int64_t>(grid.ranks.size()) != grid.size())
    throw UserError("grid {}: expected {} ranks for its shape {} x {} x {}, got {}", g, grid.size(),
                    grid.num_replicas, grid.num_shards, grid.num_parts, grid.ranks.size());
  for (const Rank rank : grid.ranks) {
    if (rank.value < 0 || rank.value >= kMaxRanks)
      throw UserError("grid {}: expected ranks from 0 to {}, got {}", g, kMaxRanks - 1, rank.value);
    if (static_cast<std::size_t>(rank.value) >= last_grid_of.size())
      last_grid_of.resize(std::max(last_grid_of.size() * 2, static_cast<std::size_t>(rank.value) + 1), -1);
    int& last = last_grid_of[static_cast<std::size_t>(rank.value)];
    if (last == g) throw UserError("grid {} contains rank {} twice", g, rank.value);
    last = g;
  }
}

// Whether the parts cover [0, size) without gaps when read in order. Parts are usually in ascending order.
bool covers_in_order(const std::vector<Span>& parts, std::int64_t size) {
  std::int64_t covered = 0;
  for (const Span& part : parts) {
    if (part.size() == 0) continue;
    if (part.begin > covered) return false;
    covered = std::max(covered, part.end);
  }
  return covered == size;
}

bool covers(const std::vector<Span>& parts, std::int64_t size) {
  if (covers_in_order(parts, size)) return true;
  std::vector<Span> sorted = parts;
  std::sort(sorted.begin(), sorted.end());
  return covers_in_order(sorted, size);
}

void validate_placement(const TensorInfo& tensor, const Placement& placement, const Layout& layout) {
  if (placement.grid < 0 || placement.grid >= static_cast<int>(layout.grids.size()))
    throw UserError("tensor {} is placed on grid {}, but the number of grids is {}", in_quotes(tensor.name),
                    placement.grid, layout.grids.size());
  const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(placement.grid)];
  if (placement.split_dim < -1 || placement.split_dim >= tensor.shape.num_dims)
    throw UserError("tensor {} of shape {} is split along dimension {}, which does not exist",
                    in_quotes(tensor.name), text(tensor.shape), placement.split_dim);
  const std::size_t num_parts = placement.split_dim < 0 ? 0 : static_cast<std::size_t>(grid.num_parts);
  if (placement.parts.size() != num_parts)
    throw UserError("tensor {} is split into {} parts, but grid {} requires {}", in_quotes(tensor.name),
                    placement.parts.size(), placement.grid, num_parts);
  if (num_parts == 0) return;
  const std::int64_t size = tensor.shape[placement.split_dim];
  for (const Span& part : placement.parts)
    if (part.begin < 0 || part.begin > part.end || part.end > size)
      throw UserError("tensor {}: part {}:{} is not inside dimension {} of shape {}", in_quotes(tensor.name),
                      part.begin, part.end, placement.split_dim, text(tensor.shape));
  if (!covers(placement.parts, size))
    throw UserError("tensor {}: the parts on grid {} do not cover dimension {} of shape {}",
                    in_quotes(tensor.name), placement.grid, placement.split_dim, text(tensor.shape));
}

}  // namespace

void validate(const Layout& layout) {
  if (layout.placements.size() != layout.tensors.size())
    throw UserError("a layout with {} tensors has placements for {} tensors", layout.tensors.size(),
                    layout.placements.size());
  std::vector<int> last_grid_of;
  for (std::size_t g = 0; g < layout.grids.size(); ++g)
    validate_grid(layout.grids[g], static_cast<int>(g), last_grid_of);
  for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
    validate_tensor(layout.tensors[t]);
    for (const Placement& placement : layout.placements[t])
      validate_placement(layout.tensors[t], placement, layout);
  }
}

void validate_pair(const Layout& from, const Layout& to) {
  validate(from);
  validate(to);
  if (from.tensors.size() != to.tensors.size())
    throw UserError("a layout with {} tensors cannot be converted to a layout with {} tensors",
                    from.tensors.size(), to.tensors.size());
  for (std::size_t t = 0; t < from.tensors.size(); ++t) {
    const TensorInfo &a = from.tensors[t], &b = to.tensors[t];
    if (a.name != b.name || a.shape != b.shape || a.bytes_per_element != b.bytes_per_element)
      throw UserError(
          "tensor {} is {} {} with {} bytes per element in the old layout, but {} {} with {} in the new one",
          t, in_quotes(a.name), text(a.shape), a.bytes_per_element, in_quotes(b.name), text(b.shape),
          b.bytes_per_element);
  }
}

}  // namespace optimus
