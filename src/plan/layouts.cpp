// Implements layouts.h. The devices of a stage already have the order of the grid [replicas][shards][tp].
#include "plan/layouts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"

namespace optimus {

int state_bytes(Precision precision, Precision accumulators, StateKind kind) {
  const int element = bytes_of(precision);
  switch (kind) {
    case StateKind::weights:
      return element;
    case StateKind::gradients:
      return bytes_of(accumulators);
    // Two moments, plus an fp32 master weight if the weights have lower precision.
    case StateKind::optimizer:
      return element >= 4 ? 2 * element : 12;
  }
  return 0;
}

namespace {

bool is_sharded(const LayerStrategy& strategy, StateKind kind) {
  return strategy.zero >= (kind == StateKind::optimizer ? 1 : kind == StateKind::gradients ? 2 : 3);
}

}  // namespace

int shards_of(const Stage& stage, const LayerStrategy& strategy, StateKind kind) {
  return is_sharded(strategy, kind) ? shard_count(stage, strategy) : 1;
}

int expert_shards_of(const Stage& stage, const LayerStrategy& strategy, StateKind kind) {
  return is_sharded(strategy, kind) ? expert_shard_count(stage, strategy) : 1;
}

Span tensor_part(const ModelSpec& model, SplitUnit unit, int tp, int part) {
  ensure(unit != SplitUnit::none, "a dimension that is not split has no tensor-parallel ranges");
  const std::int64_t units = unit == SplitUnit::kv_heads ? model.heads : num_units(model, unit);
  const std::int64_t base = units / tp, extra = units % tp;
  const std::int64_t begin = part * base + std::min<std::int64_t>(part, extra),
                     end = begin + base + (part < extra ? 1 : 0);
  const std::int64_t queries_per_key = unit == SplitUnit::kv_heads ? model.heads / model.kv_heads : 1;
  const std::int64_t first = begin / queries_per_key,
                     end_unit = begin == end ? first : (end + queries_per_key - 1) / queries_per_key;
  return {first * unit_width(model, unit), end_unit * unit_width(model, unit)};
}

std::vector<Span> tensor_parts(const ModelSpec& model, SplitUnit unit, int tp) {
  std::vector<Span> parts;
  for (int part = 0; part < tp; ++part) parts.push_back(tensor_part(model, unit, tp, part));
  return parts;
}

namespace {

// Pipelines that split the model in the same way and differ only in their devices. They are replicas of each
// other, so the cost of a layout depends only on the number of distinct pipelines.
using PipelineGroup = std::vector<const Pipeline*>;

bool have_equal_stages(const Pipeline& a, const Pipeline& b) {
  return std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                    [](const Stage& x, const Stage& y) {
                      return x.devices.size() == y.devices.size() && x.chunks == y.chunks;
                    });
}

std::vector<PipelineGroup> groups_of_pipelines(const Plan& plan) {
  std::vector<PipelineGroup> groups;
  for (const Pipeline& pipeline : plan.pipelines) {
    const auto match = std::find_if(groups.begin(), groups.end(), [&](const PipelineGroup& group) {
      return have_equal_stages(*group.front(), pipeline);
    });
    if (match != groups.end())
      match->push_back(&pipeline);
    else
      groups.push_back({&pipeline});
  }
  return groups;
}

// Creates one grid per (group of pipelines, stage, tp, shards).
class GridTable {
 public:
  explicit GridTable(Layout& layout) : layout_(layout) {}

  int grid(const PipelineGroup& pipelines, int stage, int tp, int shards) {
    const auto [at, is_new] =
        grid_index_.try_emplace({&pipelines, stage, tp, shards}, static_cast<int>(layout_.grids.size()));
    if (is_new) {
      DeviceGrid grid;
      for (const Pipeline* pipeline : pipelines)
        for (const int device : pipeline->stages[static_cast<std::size_t>(stage)].devices)
          grid.ranks.push_back(Rank{device});
      grid.num_parts = tp, grid.num_shards = shards;
      grid.num_replicas = static_cast<int>(grid.ranks.size()) / (tp * shards);
      layout_.grids.push_back(std::move(grid));
    }
    return at->second;
  }

 private:
  Layout& layout_;
  std::map<std::tuple<const PipelineGroup*, int, int, int>, int> grid_index_;
};

struct StageOfBlock {
  int stage = 0;
  const LayerStrategy* strategy = nullptr;
};

// For each block of the model, its stage and strategy in one pipeline.
std::vector<StageOfBlock> stages_of_blocks(const Plan& plan, const Pipeline& pipeline) {
  std::vector<StageOfBlock> result(static_cast<std::size_t>(plan.num_blocks));
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s)
    for (const Chunk& chunk : pipeline.stages[s].chunks)
      for (const BlockRun& run : chunk.runs)
        for (int block = run.first_block; block < run.first_block + run.count; ++block)
          result[static_cast<std::size_t>(block)] = {static_cast<int>(s), &run.strategy};
  return result;
}

}  // namespace

Layout layout_of(const Plan& plan, const ModelSpec& model, StateKind kind) {
  Layout layout;
  GridTable grids(layout);
  const std::vector<LogicalTensor> tensors = logical_tensors(model);
  const int bytes = state_bytes(plan.precision, plan.accumulators, kind);
  for (const LogicalTensor& tensor : tensors)
    layout.tensors.push_back({tensor.name, tensor.shape, bytes, tensor.block});
  layout.placements.resize(tensors.size());
  // [(unit, tp)]; shared because many tensors are split in the same way
  std::map<std::pair<SplitUnit, int>, std::vector<Span>> parts;

  const std::vector<PipelineGroup> groups = groups_of_pipelines(plan);
  for (const PipelineGroup& group : groups) {
    const Pipeline& pipeline = *group.front();
    const std::vector<StageOfBlock> stages = stages_of_blocks(plan, pipeline);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const auto add_placement = [&](int block) {
        const auto [stage, strategy] = stages[static_cast<std::size_t>(block)];
        const Stage& tensor_stage = pipeline.stages[static_cast<std::size_t>(stage)];
        const TensorSplit split = tensors[t].split;
        const bool is_of_experts = is_expert(split.unit);
        const int width = is_of_experts ? strategy->ep : strategy->tp;
        const int shards = is_of_experts ? expert_shards_of(tensor_stage, *strategy, kind)
                                         : shards_of(tensor_stage, *strategy, kind);
        Placement placement;
        placement.grid = grids.grid(group, stage, width, shards);
        if (split.unit != SplitUnit::none && width > 1) {
          placement.split_dim = split.dim;
          std::vector<Span>& spans = parts[{split.unit, width}];
          if (spans.empty()) spans = tensor_parts(model, split.unit, width);
          placement.parts = spans;
        }
        std::vector<Placement>& placements = layout.placements[t];
        if (std::find(placements.begin(), placements.end(), placement) == placements.end())
          placements.push_back(std::move(placement));
      };
      add_placement(tensors[t].block);
      if (tensors[t].is_tied_to_head) add_placement(plan.num_blocks - 1);
    }
  }
  return layout;
}

bool has_shard_copies(const Plan& plan, const LayerStrategy& strategy) {
  return plan.copy_distance > 0 && strategy.zero > 0;
}

namespace {

// Returns the grid of the shard copies. In `grid`, the rank that holds shard s + distance also holds the copy
// of shard s and repeats the updates of that shard.
DeviceGrid rotated(const DeviceGrid& grid, int distance) {
  DeviceGrid result = grid;
  const int parts = grid.num_parts;
  for (int replica = 0; replica < grid.num_replicas; ++replica)
    for (int shard = 0; shard < grid.num_shards; ++shard)
      for (int part = 0; part < parts; ++part)
        result.ranks[static_cast<std::size_t>((replica * grid.num_shards + shard) * parts + part)] =
            grid.at(replica, (shard + distance) % grid.num_shards, part);
  return result;
}

}  // namespace

Layout layout_with_copies(const Plan& plan, const ModelSpec& model, StateKind kind) {
  Layout layout = layout_of(plan, model, kind);
  if (plan.copy_distance == 0) return layout;
  std::vector<int> copy_of(layout.grids.size(), -1);  // -1 for a grid with a single shard
  for (std::size_t g = 0; g < copy_of.size(); ++g) {
    if (layout.grids[g].num_shards == 1) continue;
    copy_of[g] = static_cast<int>(layout.grids.size());
    layout.grids.push_back(rotated(layout.grids[g], plan.copy_distance));
  }
  for (std::vector<Placement>& placements : layout.placements) {
    const std::size_t count = placements.size();
    for (std::size_t i = 0; i < count; ++i) {
      Placement copy = placements[i];
      copy.grid = copy_of[static_cast<std::size_t>(copy.grid)];
      if (copy.grid >= 0) placements.push_back(std::move(copy));
    }
  }
  return layout;
}

namespace {

// The owners of one piece of a block's master weights and moments, over all replicas and pipelines. Pieces
// are numbered by shard, then by tensor-parallel rank. In a pipeline that splits the block into fewer pieces,
// the numbers wrap around.
std::vector<int> owners_of(const Plan& plan, int block, int piece = 0) {
  std::vector<int> holders;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks) {
        if (block < chunk.first_block() || block >= chunk.end_block()) continue;
        const LayerStrategy& strategy = strategy_of(stage, block);
        const int shards = shards_of(stage, strategy, StateKind::optimizer), step = strategy.tp * shards;
        const int part = piece % strategy.tp, shard = piece % step / strategy.tp;
        const auto device = [&](std::size_t first, int of_shard) {
          return stage.devices[first + static_cast<std::size_t>(of_shard % shards * strategy.tp + part)];
        };
        for (std::size_t first = 0; first < stage.devices.size(); first += static_cast<std::size_t>(step)) {
          holders.push_back(device(first, shard));
          if (has_shard_copies(plan, strategy)) holders.push_back(device(first, shard + plan.copy_distance));
        }
      }
  return holders;
}

int num_pieces(const Plan& plan, int block) {
  int max_pieces = 1;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks) {
        if (block < chunk.first_block() || block >= chunk.end_block()) continue;
        const LayerStrategy& strategy = strategy_of(stage, block);
        max_pieces = std::max(max_pieces, strategy.tp * shards_of(stage, strategy, StateKind::optimizer));
      }
  return max_pieces;
}

}  // namespace

std::vector<int> smallest_owner_set(const Plan& plan) {
  std::vector<int> smallest_set = owners_of(plan, 0);
  for (int block = 1; block < plan.num_blocks; ++block)
    if (std::vector<int> holders = owners_of(plan, block); holders.size() < smallest_set.size())
      smallest_set = std::move(holders);
  return smallest_set;
}

std::vector<int> smallest_domain_set(const Plan& plan, const std::vector<int>& domain_of) {
  std::vector<int> smallest_set;
  for (int block = 0; block < plan.num_blocks; ++block)
    for (int piece = 0; piece < num_pieces(plan, block); ++piece) {
      std::set<int> domains;
      for (const int device : owners_of(plan, block, piece))
        domains.insert(domain_of.at(static_cast<std::size_t>(device)));
      if (smallest_set.empty() || domains.size() < smallest_set.size())
        smallest_set.assign(domains.begin(), domains.end());
    }
  return smallest_set;
}

namespace {

// A stage whose sharded state has copies, with its tp and its number of shards.
struct ShardedStage {
  const Stage* stage;
  int tp, shards;
  bool operator==(const ShardedStage&) const = default;
};

std::vector<ShardedStage> sharded_stages(const Plan& plan) {
  std::vector<ShardedStage> result;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs) {
          const ShardedStage sharded_stage{&stage, run.strategy.tp,
                                           shards_of(stage, run.strategy, StateKind::optimizer)};
          const bool is_known = !result.empty() && result.back() == sharded_stage;
          if (has_shard_copies(plan, run.strategy) && !is_known) result.push_back(sharded_stage);
        }
  return result;
}

// The number of copies in the same failure domain as their original.
std::int64_t num_copies_in_same_domain(const ShardedStage& sharded, int distance,
                                       const std::vector<int>& domain_of) {
  const std::vector<int>& devices = sharded.stage->devices;
  const auto group = static_cast<std::size_t>(sharded.tp * sharded.shards);
  const auto step = static_cast<std::size_t>(sharded.tp * distance);
  const auto domain = [&](std::size_t place) {
    return domain_of.at(static_cast<std::size_t>(devices.at(place)));
  };
  std::int64_t result = 0;
  for (std::size_t first = 0; first < devices.size(); first += group)
    for (std::size_t i = 0; i < group; ++i) result += domain(first + i) == domain(first + (i + step) % group);
  return result;
}

}  // namespace

Plan with_copies_in_other_domains(Plan plan, const std::vector<int>& domain_of) {
  const std::vector<ShardedStage> stages = sharded_stages(plan);
  const auto num_in_same_domain = [&](int distance) {
    std::int64_t result = 0;
    for (const ShardedStage& sharded_stage : stages)
      result += num_copies_in_same_domain(sharded_stage, distance, domain_of);
    return result;
  };
  int max_shards = 1;
  for (const ShardedStage& sharded_stage : stages) max_shards = std::max(max_shards, sharded_stage.shards);
  std::int64_t min_count = num_in_same_domain(plan.copy_distance);
  int best = plan.copy_distance;
  for (int distance = 1; distance < max_shards && min_count > 0; ++distance) {
    const bool is_own_copy = std::any_of(stages.begin(), stages.end(),
                                         [&](const auto& stage) { return distance % stage.shards == 0; });
    if (is_own_copy) continue;
    if (const std::int64_t count = num_in_same_domain(distance); count < min_count)
      min_count = count, best = distance;
  }
  plan.copy_distance = best;
  return plan;
}

int num_tolerated_losses(const Plan& plan) { return static_cast<int>(smallest_owner_set(plan).size()) - 1; }

}  // namespace optimus
