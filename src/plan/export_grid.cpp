// See export_grid.h.
#include "plan/export_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "plan/ranges.h"

namespace optimus {
namespace {

// The same strategy without its recompute settings.
LayerStrategy without_recompute(LayerStrategy strategy) {
  strategy.recompute = RecomputeMode::none;
  strategy.recompute_layers = 1;
  return strategy;
}

bool is_same_shape(const Pipeline& a, const Pipeline& b) {
  if (a.stages.size() != b.stages.size() || a.microbatches != b.microbatches) return false;
  for (std::size_t s = 0; s < a.stages.size(); ++s)
    if (a.stages[s].devices.size() != b.stages[s].devices.size() || a.stages[s].chunks != b.stages[s].chunks)
      return false;
  return true;
}

void check_equal_parts(const Plan& plan, const std::string& name) {
  for (std::size_t p = 1; p < plan.pipelines.size(); ++p)
    if (!is_same_shape(plan.pipelines.front(), plan.pipelines[p]))
      throw UserError(
          "{} cannot run pipelines of different shape, but pipeline {} differs from pipeline 0; export a "
          "plan with one pipeline or with equal ones",
          name, p);
  const Stage& first = plan.pipelines.front().stages.front();
  for (std::size_t s = 0; s < plan.pipelines.front().stages.size(); ++s) {
    const Stage& stage = plan.pipelines.front().stages[s];
    if (stage.devices.size() != first.devices.size())
      throw UserError(
          "{} needs the same number of devices in every stage, but stage {} has {} and stage 0 has {}", name,
          s, stage.devices.size(), first.devices.size());
    for (const Chunk& chunk : stage.chunks)
      for (const BlockRun& run : chunk.runs)
        if (without_recompute(run.strategy) != without_recompute(first.chunks.front().runs.front().strategy))
          throw UserError(
              "{} splits all layers in the same way, but block {} of the plan is split differently from "
              "block 0",
              name, run.first_block);
  }
}

// The recompute settings of all layers, to be merged into one rule.
struct RecomputeUse {
  std::set<std::pair<RecomputeMode, int>> kinds;  // mode and number of layers in a recompute group
  std::int64_t max_full_layers = 0;               // largest number of fully recomputed layers in a chunk
  bool differs_between_chunks = false;
};

RecomputeUse recompute_use(const Plan& plan) {
  RecomputeUse use;
  std::set<std::int64_t> counts;
  for (const Stage& stage : plan.pipelines.front().stages)
    for (const Chunk& chunk : stage.chunks) {
      std::int64_t full = 0, layers = 0;
      for (const BlockRun& run : chunk.runs) {
        const int first = std::max(run.first_block, 1),
                  end = std::min(run.first_block + run.count, plan.num_blocks - 1);
        if (first >= end) continue;  // only embedding or head
        layers += end - first;
        use.kinds.emplace(run.strategy.recompute, run.strategy.recompute_layers);
        if (run.strategy.recompute == RecomputeMode::full) full += end - first;
      }
      if (layers > 0) counts.insert(full);
      use.max_full_layers = std::max(use.max_full_layers, full);
    }
  use.differs_between_chunks = counts.size() > 1;
  return use;
}

void set_recompute(const Plan& plan, PlanGrid& grid, std::vector<std::string>& notes) {
  const RecomputeUse use = recompute_use(plan);
  grid.strategy.recompute = RecomputeMode::none;
  grid.strategy.recompute_layers = 1;
  if (use.kinds.empty()) return;
  const auto [strongest, group] = *use.kinds.rbegin();
  grid.strategy.recompute = strongest;
  if (use.kinds.size() == 1) {
    grid.strategy.recompute_layers = group;
    return;
  }
  const bool has_selective = use.kinds.contains({RecomputeMode::selective, 1});
  const bool has_none = use.kinds.contains({RecomputeMode::none, 1});
  if (strongest == RecomputeMode::selective) {
    notes.emplace_back(
        "the plan's layers differ in recompute; the export uses selective recompute for all, which costs "
        "time");
  } else if (!has_none && !has_selective) {
    notes.emplace_back(
        "layers are recomputed in groups of different sizes; the export recomputes each layer separately");
  } else if (has_selective) {
    notes.emplace_back(
        "the plan's layers differ in recompute; the export uses full recompute for all, which costs time but "
        "no memory");
  } else {
    grid.recomputed_layers = static_cast<int>(use.max_full_layers);
    notes.push_back(fmt::format(
        "only some layers use full recompute; the export recomputes {} layers of each stage{}, one at a time",
        use.max_full_layers,
        use.differs_between_chunks ? ", as many as in the stage that recomputes most" : ""));
  }
}

// Megatron, DeepSpeed and torchtitan require equal micro-batches.
void set_microbatches(const Plan& plan, const std::string& name, PlanGrid& grid,
                      std::vector<std::string>& notes) {
  if (plan.batch % grid.dp != 0)
    throw UserError(
        "{} distributes the batch evenly, but {} sequences are not divisible by {} data-parallel ranks; use "
        "a "
        "batch that is a multiple of {}",
        name, plan.batch, grid.dp, grid.dp);
  const std::int64_t batch_per_replica = plan.batch / grid.dp;  // batch of one data-parallel rank
  const std::vector<int>& sizes = plan.pipelines.front().microbatches;
  const int pipelines = static_cast<int>(plan.pipelines.size()), width = grid.dp / pipelines;
  const int largest = *std::max_element(sizes.begin(), sizes.end());
  std::int64_t microbatch_size = (largest + width - 1) / width;
  while (batch_per_replica % microbatch_size != 0) --microbatch_size;
  const bool is_equal =
      std::all_of(sizes.begin(), sizes.end(), [&](int n) { return n == microbatch_size * width; });
  if (!is_equal)
    notes.push_back(
        fmt::format("micro-batches of unequal size are replaced by {} micro-batches of {} sequences per rank",
                    batch_per_replica / microbatch_size, microbatch_size));
  grid.microbatch = static_cast<int>(microbatch_size);
  grid.num_microbatches = batch_per_replica / microbatch_size;
}

// Other trainers order ranks first by stage, then by data-, context- and tensor-parallel rank. Adds a note if
// the plan's device indices are not in this order.
void note_device_order(const Plan& plan, std::vector<std::string>& notes) {
  std::vector<int> order;
  for (std::size_t s = 0; s < plan.pipelines.front().stages.size(); ++s)
    for (const Pipeline& pipeline : plan.pipelines) {
      const std::vector<int>& devices = pipeline.stages[s].devices;
      order.insert(order.end(), devices.begin(), devices.end());
    }
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i] != static_cast<int>(i)) {
      std::string devices = ranges_text(order);
      if (devices.size() > 200) devices = devices.substr(0, 200) + "…";
      notes.push_back(fmt::format(
          "the launcher assigns ranks; ranks 0, 1, … must run on the plan's devices {}", devices));
      return;
    }
}

void note_schedule(const Plan& plan, const PlanGrid& grid, std::vector<std::string>& notes) {
  if (plan.copy_distance > 0)
    notes.push_back(fmt::format(
        "the redundant copy of sharded state (copy_distance {}) is not supported: after the loss of a "
        "device, training restarts from the last checkpoint",
        plan.copy_distance));
  if (grid.pp == 1 && plan.schedule == Schedule::interleaved)
    notes.emplace_back("a single stage cannot be interleaved, so its chunks run as one");
}

}  // namespace

std::int64_t PlanGrid::layers_of(std::size_t part, int num_blocks) const {
  const Span& span = parts[part];
  return std::max<std::int64_t>(
      0, std::min<std::int64_t>(span.end, num_blocks - 1) - std::max<std::int64_t>(span.begin, 1));
}

std::string display_name(Trainer trainer) {
  switch (trainer) {
    case Trainer::megatron:
      return "Megatron-LM";
    case Trainer::deepspeed:
      return "DeepSpeed";
    case Trainer::torchtitan:
      return "torchtitan";
    case Trainer::optimus:
      return "Optimus-Megatron";
  }
  return "";
}

PlanGrid grid_of(const Plan& plan, Trainer trainer, std::vector<std::string>& notes) {
  const std::string name = display_name(trainer);
  if (is_asynchronous(plan.schedule))
    throw UserError(
        "{} has no asynchronous schedule such as {}, and a synchronous schedule changes what the model "
        "learns",
        name, text(plan.schedule));
  check_equal_parts(plan, name);
  const Pipeline& pipeline = plan.pipelines.front();
  PlanGrid grid;
  grid.strategy = pipeline.stages.front().chunks.front().runs.front().strategy;
  grid.pp = static_cast<int>(pipeline.stages.size());
  grid.chunks = static_cast<int>(pipeline.stages.front().chunks.size());
  grid.dp = data_parallel(pipeline.stages.front(), grid.strategy) * static_cast<int>(plan.pipelines.size());
  grid.shards = shard_count(pipeline.stages.front(), grid.strategy);
  grid.devices = num_devices(plan);
  if (grid.pp == 1) {
    grid.parts.push_back({0, plan.num_blocks});
    note_schedule(plan, grid, notes);
    grid.chunks = 1;
  } else {
    note_schedule(plan, grid, notes);
    for (int c = 0; c < grid.chunks; ++c)
      for (const Stage& stage : pipeline.stages) {
        const Chunk& chunk = stage.chunks[static_cast<std::size_t>(c)];
        grid.parts.push_back({chunk.first_block(), chunk.end_block()});
      }
  }
  for (std::size_t i = 1; i < grid.parts.size(); ++i)
    grid.is_even = grid.is_even && grid.layers_of(i, plan.num_blocks) == grid.layers_of(0, plan.num_blocks);
  grid.is_even = grid.is_even && grid.layers_of(0, plan.num_blocks) > 0;
  set_recompute(plan, grid, notes);
  set_microbatches(plan, name, grid, notes);
  note_device_order(plan, notes);
  return grid;
}

NodeShape node_shape(int devices, int devices_per_node, std::vector<std::string>& notes) {
  int used_devices_per_node = std::clamp(devices_per_node, 1, devices);
  while (devices % used_devices_per_node != 0) --used_devices_per_node;
  if (used_devices_per_node < std::min(devices, devices_per_node))
    notes.push_back(
        fmt::format("{} devices do not fill nodes of {}; the export starts {} nodes with {} devices each",
                    devices, devices_per_node, devices / used_devices_per_node, used_devices_per_node));
  return {devices / used_devices_per_node, used_devices_per_node};
}

std::string shell_quoted(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string export_header(const Plan& plan, const std::string& title, const std::vector<std::string>& notes) {
  std::string header =
      fmt::format("# {}: {} on {} devices.\n# Written by optimus from plan {} (plan.json).\n", title,
                  short_text(plan), num_devices(plan), plan_hash(plan));
  for (const std::string& note : notes) header += "# Note: " + note + ".\n";
  return header;
}

}  // namespace optimus
