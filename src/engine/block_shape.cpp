// See block_shape.h.
#include "engine/block_shape.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace optimus {
namespace {

// Returns the names of tensors that one GEMM reads or writes as a fused matrix: q | k | v and gate | up,
// weights and biases.
const std::vector<std::vector<const char*>>& fused_names() {
  static const std::vector<std::vector<const char*>> names = {{"attention.q", "attention.k", "attention.v"},
                                                              {"mlp.gate", "mlp.up"}};
  return names;
}

StorageType storage_type(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return StorageType::fp64;
    case Precision::fp32:
      return StorageType::fp32;
    case Precision::fp16:
      return StorageType::fp16;
    case Precision::bf16:
    case Precision::fp8:
      return StorageType::bf16;
  }
  return StorageType::fp32;
}

StorageSpec storage_spec(const std::vector<LogicalTensor>& tensors, const ModelSpec& model,
                         Precision precision) {
  StorageSpec spec;
  spec.types.assign(tensors.size(), storage_type(precision));
  std::map<std::string, int> index;
  for (std::size_t t = 0; t < tensors.size(); ++t) index[tensors[t].name] = static_cast<int>(t);
  for (int layer = 0; layer < model.layers; ++layer)
    for (const std::vector<const char*>& names : fused_names())
      for (const char* suffix : {".weight", ".bias"}) {
        std::vector<int> members;
        for (const char* name : names)
          if (const auto at = index.find(fmt::format("layers.{}.{}{}", layer, name, suffix));
              at != index.end())
            members.push_back(at->second);
        if (members.size() > 1) spec.fusions.push_back(std::move(members));
      }
  return spec;
}

Plan without_shards(Plan plan) {
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (Chunk& chunk : stage.chunks)
        for (BlockRun& run : chunk.runs) run.strategy.zero = 0, run.strategy.shard_group = 0;
  return plan;
}

// Returns the rows of a part that this device contributes to sums over the whole model
// (LocalTensor::counted). If the device belongs to the first copy of its group, it contributes the rows that
// no tensor-parallel rank with a lower index stores. Otherwise it contributes none. Several parts may store
// the same key/value heads, and all parts store the tensors that are not split.
Span counted_rows(const Layout& layout, const LogicalTensor& tensor, int index, int device) {
  const Placement& placement = layout.placements[static_cast<std::size_t>(index)].front();
  const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(placement.grid)];
  const auto at = std::find(grid.ranks.begin(), grid.ranks.end(), Rank{device}) - grid.ranks.begin();
  const int part = static_cast<int>(at) % grid.num_parts;
  if (at >= grid.num_parts * grid.num_shards) return {};  // in another group, or not in the first copy
  const std::int64_t rows = tensor.shape[0];
  if (placement.split_dim < 0) return part == 0 ? Span{0, rows} : Span{};
  const Span own_rows = placement.parts[static_cast<std::size_t>(part)];
  if (placement.split_dim > 0) return {0, rows};
  std::int64_t begin = own_rows.begin;
  for (int lower = 0; lower < part; ++lower)
    begin = std::max(begin, placement.parts[static_cast<std::size_t>(lower)].end);
  return {std::min(begin, own_rows.end) - own_rows.begin, own_rows.size()};
}

}  // namespace

bool BlockShape::is_sharded(StateKind kind) const {
  return num_shards > 1 && zero >= (kind == StateKind::optimizer ? 1 : kind == StateKind::gradients ? 2 : 3);
}

Span BlockShape::own_rows(const LocalTensor& tensor) const {
  return num_shards == 1 ? Span{0, tensor.rows} : shard_span(tensor.rows, num_shards, shard);
}

namespace {

// A tied embedding belongs to the first block, or to the head in a stage without the first block.
Layout with_tied_copy(Layout layout, const std::vector<LogicalTensor>& tensors, const Stage& stage,
                      int head) {
  if (stage.chunks.front().first_block() == 0) return layout;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (tensors[t].is_tied_to_head) layout.tensors[t].block = head;
  return layout;
}

}  // namespace

std::vector<BlockShape> block_shapes(const Plan& plan, const ModelSpec& model, int device) {
  const std::vector<LogicalTensor> tensors = logical_tensors(model);
  const StorageSpec spec = storage_spec(tensors, model, plan.precision);
  const PlanLocation location = location_of(plan, device);
  const Stage& stage = plan.pipelines[static_cast<std::size_t>(location.pipeline)]
                           .stages[static_cast<std::size_t>(location.stage)];
  const auto own_rows = [&](Layout layout) {
    return with_tied_copy(std::move(layout), tensors, stage, plan.num_blocks - 1);
  };
  const Layout whole_layout = own_rows(layout_of(without_shards(plan), model, StateKind::weights));
  const Layout shard_layout = own_rows(layout_of(plan, model, StateKind::optimizer));
  const Storage whole_storage = build_storage(whole_layout, RankIndex(whole_layout), Rank{device}, spec);
  const Storage sharded = build_storage(shard_layout, RankIndex(shard_layout), Rank{device}, spec);
  ensure(whole_storage.entries.size() == sharded.entries.size(),
         "{} tensors in whole storage, but {} in sharded storage", whole_storage.entries.size(),
         sharded.entries.size());
  std::vector<BlockShape> shapes(static_cast<std::size_t>(num_blocks(model)));
  for (std::size_t e = 0; e < whole_storage.entries.size(); ++e) {
    const StorageEntry &part = whole_storage.entries[e], &shard = sharded.entries[e];
    const LogicalTensor& tensor = tensors[static_cast<std::size_t>(part.tensor)];
    const int block = whole_layout.tensors[static_cast<std::size_t>(part.tensor)].block;
    BlockShape& shape = shapes[static_cast<std::size_t>(block)];
    const LayerStrategy& strategy = strategy_of(stage, block);
    shape.zero = strategy.zero;
    shape.num_shards = shards_of(stage, strategy, StateKind::optimizer);
    shape.shard = location.index / strategy.tp % shape.num_shards;
    LocalTensor local_tensor{
        .tensor = part.tensor, .name = tensor.name, .box = part.box, .offset = part.offset};
    local_tensor.rows = part.box[0].size(), local_tensor.row = part.row_stride;
    local_tensor.shard_offset = shard.offset,
    local_tensor.shard_rows = (local_tensor.rows + shape.num_shards - 1) / shape.num_shards;
    local_tensor.counted = counted_rows(shard_layout, tensor, part.tensor, device);
    local_tensor.has_weight_decay = tensor.has_weight_decay, local_tensor.is_per_head = tensor.is_per_head;
    shape.tensors.push_back(std::move(local_tensor));
    shape.whole_elements = whole_storage.buffers[static_cast<std::size_t>(part.buffer)].num_elements;
    shape.shard_elements = sharded.buffers[static_cast<std::size_t>(shard.buffer)].num_elements;
  }
  for (BlockShape& shape : shapes)
    std::sort(shape.tensors.begin(), shape.tensors.end(),
              [](const LocalTensor& a, const LocalTensor& b) { return a.offset < b.offset; });
  return shapes;
}

// All members of a shard group have the same offsets, so the shapes of two members differ only in the shard
// index.
std::vector<BlockShape> copied_shapes(const Plan& plan, const ModelSpec& model, int device) {
  std::vector<BlockShape> shapes = block_shapes(plan, model, device);
  for (BlockShape& shape : shapes) {
    if (plan.copy_distance == 0 || shape.zero == 0) {
      shape = {};
      continue;
    }
    const int owner_offset = shape.num_shards - plan.copy_distance % shape.num_shards;
    shape.shard = (shape.shard + owner_offset) % shape.num_shards;
  }
  return shapes;
}

std::vector<StateRange> update_ranges(const BlockShape& shape) {
  std::vector<StateRange> runs;
  bool is_at_tensor_end =
      false;  // whether the last run reaches the end of its tensor, so that only padding follows
  for (const LocalTensor& tensor : shape.tensors) {
    const Span rows = shape.own_rows(tensor);
    if (rows.size() == 0) continue;
    const StateRange run{tensor.shard_offset, tensor.offset + rows.begin * tensor.row,
                         rows.size() * tensor.row, tensor.has_weight_decay};
    // Padding between two tensors is always zero, so a run may include this padding if the gap is the same in
    // both layouts. Rows of other shards are not padding.
    if (!runs.empty() && is_at_tensor_end && rows.begin == 0 &&
        runs.back().has_weight_decay == run.has_weight_decay &&
        run.shard - runs.back().shard == run.whole - runs.back().whole)
      runs.back().length = run.shard + run.length - runs.back().shard;
    else
      runs.push_back(run);
    is_at_tensor_end = rows.end == tensor.rows;
  }
  return runs;
}

std::vector<StateRange> counted_ranges(const BlockShape& shape) {
  std::vector<StateRange> runs;
  bool only_padding_since = false;  // whether only padding has followed the last run
  for (const LocalTensor& tensor : shape.tensors) {
    const Span own_rows = shape.own_rows(tensor);
    if (own_rows.size() == 0) continue;
    const Span rows{std::max(own_rows.begin, tensor.counted.begin),
                    std::min(own_rows.end, tensor.counted.end)};
    if (rows.begin >= rows.end) {
      only_padding_since = false;
      continue;
    }
    const StateRange run{tensor.shard_offset + (rows.begin - own_rows.begin) * tensor.row,
                         tensor.offset + rows.begin * tensor.row, rows.size() * tensor.row};
    if (only_padding_since && rows.begin == own_rows.begin)
      runs.back().length = run.shard + run.length - runs.back().shard;
    else
      runs.push_back(run);
    only_padding_since = rows.end == own_rows.end;
  }
  return runs;
}

namespace {

// For each tensor, calls copy(view of `whole`, view of `shards`) with views [members, elements] that together
// cover the tensor. The first call is for all members with full shards, the second for the member with the
// remainder.
template <typename Copy>
void for_each_piece(const BlockShape& shape, const at::Tensor& whole, const at::Tensor& shards, Copy copy) {
  const at::Tensor by_member = shards.view({shape.num_shards, shape.shard_elements});
  for (const LocalTensor& tensor : shape.tensors) {
    if (tensor.rows == 0 || tensor.row == 0) continue;
    const std::int64_t piece = tensor.shard_rows * tensor.row, num_full = tensor.rows / tensor.shard_rows,
                       remainder = (tensor.rows - num_full * tensor.shard_rows) * tensor.row;
    const at::Tensor part = whole.narrow(0, tensor.offset, tensor.rows * tensor.row);
    copy(part.narrow(0, 0, num_full * piece).view({num_full, piece}),
         by_member.narrow(0, 0, num_full).narrow(1, tensor.shard_offset, piece));
    if (remainder > 0)
      copy(part.narrow(0, num_full * piece, remainder).view({1, remainder}),
           by_member.narrow(0, num_full, 1).narrow(1, tensor.shard_offset, remainder));
  }
}

}  // namespace

void to_shards(const BlockShape& shape, const at::Tensor& whole, at::Tensor& shards) {
  std::int64_t used = 0;
  for (const LocalTensor& tensor : shape.tensors) used += tensor.rows * tensor.row;
  if (used < shards.numel()) shards.zero_();  // padding must not contribute to sums
  for_each_piece(shape, whole, shards, [](const at::Tensor& part, at::Tensor to) { to.copy_(part); });
}

void from_shards(const BlockShape& shape, const at::Tensor& shards, at::Tensor& whole) {
  for_each_piece(shape, whole, shards, [](at::Tensor part, const at::Tensor& from) { part.copy_(from); });
}

}  // namespace optimus
