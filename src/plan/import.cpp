// Implements import.h: detects which trainer a file is for, and builds the plan for both importers.
#include "plan/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "layout/layout.h"
#include "plan/import_build.h"
#include "plan/validate.h"

namespace optimus {
namespace {

constexpr Bytes kMaxImportBytes{4 << 20};
constexpr std::int64_t kMaxLayoutBlocks = 20'000;

// The runs of one chunk. Its first `num_recomputed` layers recompute as `strategy` specifies. The other
// layers do not recompute.
Chunk make_chunk(Span blocks, const LayerStrategy& strategy, int num_recomputed, int num_blocks) {
  const std::int64_t first_layer = std::max<std::int64_t>(blocks.begin, 1);
  const std::int64_t recompute_end = std::min<std::int64_t>(first_layer + num_recomputed, blocks.end);
  const bool is_whole =
      num_recomputed == 0 || recompute_end >= std::min<std::int64_t>(blocks.end, num_blocks - 1);
  if (is_whole) return {{{static_cast<int>(blocks.begin), static_cast<int>(blocks.size()), strategy}}};
  LayerStrategy saved_strategy = strategy;
  saved_strategy.recompute = RecomputeMode::none, saved_strategy.recompute_layers = 1;
  return {{{static_cast<int>(blocks.begin), static_cast<int>(recompute_end - blocks.begin), strategy},
           {static_cast<int>(recompute_end), static_cast<int>(blocks.end - recompute_end), saved_strategy}}};
}

// The blocks of each chunk. The first chunk also contains the embedding, and the last chunk also contains the
// head.
std::vector<Span> blocks_of_parts(const std::vector<std::int64_t>& layers) {
  std::vector<Span> parts;
  std::int64_t next = 1;
  for (const std::int64_t count : layers) parts.push_back({next, next + count}), next += count;
  parts.front().begin = 0;
  parts.back().end += 1;
  return parts;
}

void distribute_layers(const ImportedGrid& grid, Plan& plan) {
  std::vector<Stage>& stages = plan.pipelines.front().stages;
  std::vector<std::int64_t> layers = grid.layers;
  if (layers.empty())
    for (const Span& part : split_evenly(plan.num_blocks - 2, grid.shape.pp * grid.shape.chunks))
      layers.push_back(part.size());
  const std::vector<Span> parts = blocks_of_parts(layers);
  for (std::size_t i = 0; i < parts.size(); ++i)
    stages[i % stages.size()].chunks[i / stages.size()] =
        make_chunk(parts[i], grid.shape.strategy, grid.recomputed_layers, plan.num_blocks);
}

// Renumbers devices in the order of ranks, in which tensor- and context-parallel ranks vary fastest, then
// stages, then data-parallel ranks.
void renumber_inner_pipeline(const ImportedGrid& grid, Plan& plan) {
  const int inner = grid.shape.strategy.tp * grid.shape.strategy.cp;
  std::vector<Stage>& stages = plan.pipelines.front().stages;
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (std::size_t i = 0; i < stages[s].devices.size(); ++i) {
      const int offset = static_cast<int>(i) % inner, data = static_cast<int>(i) / inner;
      stages[s].devices[i] = (data * grid.shape.pp + static_cast<int>(s)) * inner + offset;
    }
}

}  // namespace

Plan build_imported(const ImportedGrid& imported_grid, const ModelSpec& model, const std::string& source) {
  ImportedGrid grid = imported_grid;
  const LayerStrategy& s = grid.shape.strategy;
  const std::int64_t parts = std::int64_t{grid.shape.pp} * grid.shape.chunks;
  const std::int64_t devices_per_replica = std::int64_t{grid.shape.pp} * s.tp * s.cp;
  if (devices_per_replica > kMaxPlanDevices || grid.devices > kMaxPlanDevices)
    throw UserError("{}: {} devices exceed the limit of {} devices per plan", source,
                    std::max(devices_per_replica, grid.devices), kMaxPlanDevices);
  if (grid.devices % devices_per_replica != 0)
    throw UserError("{}: {} devices are not divisible by tp {} x cp {} x pp {}", source, grid.devices, s.tp,
                    s.cp, grid.shape.pp);
  grid.shape.dp = static_cast<int>(grid.devices / devices_per_replica);
  const std::int64_t sequences_per_round = std::int64_t{grid.shape.dp} * grid.shape.microbatch;
  if (grid.shape.batch == 0) grid.shape.batch = sequences_per_round;
  if (grid.shape.batch % sequences_per_round != 0)
    throw UserError(
        "{}: a batch of {} is not divisible by micro-batches of {} sequences on {} data-parallel ranks",
        source, grid.shape.batch, grid.shape.microbatch, grid.shape.dp);
  if (grid.shape.batch / sequences_per_round > kMaxMicrobatches || sequences_per_round > 1'000'000'000)
    throw UserError("{}: a batch of {} in micro-batches of {} exceeds the limits of a plan", source,
                    grid.shape.batch, sequences_per_round);
  if (parts > model.layers + 2)
    throw UserError("{}: {} chunks in total are too many for the {} layers of the model", source, parts,
                    model.layers);
  if (!grid.layers.empty() &&
      (std::ssize(grid.layers) != parts ||
       std::accumulate(grid.layers.begin(), grid.layers.end(), std::int64_t{0}) != model.layers))
    throw UserError(
        "{}: the pipeline layout has {} layers in {} chunks, but the model has {} layers and the grid has {} "
        "chunks",
        source, std::accumulate(grid.layers.begin(), grid.layers.end(), std::int64_t{0}), grid.layers.size(),
        model.layers, parts);
  Plan plan = uniform_plan(model, grid.shape);
  plan.accumulators = grid.accumulators;
  plan.fp8 = grid.fp8;
  distribute_layers(grid, plan);
  if (grid.stages_vary_before_replicas) renumber_inner_pipeline(grid, plan);
  validate(plan, model, source);
  return plan;
}

// In a layout, E is the embedding, t a layer, and L the loss. '|' ends a chunk, "x*n" and "(x)*n" repeat, and
// commas are ignored.
std::vector<std::int64_t> parse_layout(const std::string& layout, const std::string& location) {
  std::string flat_layout;
  for (const char c : layout)
    if (c != ',' && c != ' ') flat_layout += c;
  const auto refuse = [&](const std::string& why) -> void {
    throw UserError("{}: {} {}", location, in_quotes(layout), why);
  };
  std::vector<std::int64_t> layers = {0};
  std::size_t at = 0;
  std::int64_t total = 0;
  const auto repeat = [&]() -> std::int64_t {
    if (at >= flat_layout.size() || flat_layout[at] != '*') return 1;
    std::int64_t count = 0;
    while (++at < flat_layout.size() && flat_layout[at] >= '0' && flat_layout[at] <= '9' &&
           count <= kMaxLayoutBlocks)
      count = count * 10 + (flat_layout[at] - '0');
    if (count < 1 || count > kMaxLayoutBlocks) refuse("has an invalid repeat count");
    return count;
  };
  const auto add_unit = [&](std::string_view unit, std::int64_t times) {
    total += times * std::ssize(unit);
    if (total > kMaxLayoutBlocks) refuse("has too many layers");
    for (std::int64_t i = 0; i < times; ++i)
      for (const char c : unit) {
        if (c == '|')
          layers.push_back(0);
        else if (c == 't')
          ++layers.back();
        else if (c != 'E' && c != 'L')
          refuse("is not a layout of E, t, L and |");
      }
  };
  // A unit inside parentheses may be repeated too: "(Et*2|)*3".
  const auto read_unit = [&](std::string& unit) {
    const char c = flat_layout[at++];
    const std::int64_t times = repeat();
    if (times + std::ssize(unit) > kMaxLayoutBlocks) refuse("has too many layers");
    unit.append(static_cast<std::size_t>(times), c);
  };
  while (at < flat_layout.size()) {
    std::string unit;
    if (flat_layout[at] != '(') {
      read_unit(unit);
      add_unit(unit, 1);
      continue;
    }
    ++at;
    while (at < flat_layout.size() && flat_layout[at] != ')') read_unit(unit);
    if (at >= flat_layout.size()) refuse("has an unclosed parenthesis");
    ++at;
    add_unit(unit, repeat());
  }
  return layers;
}

ImportedPlan import_plan(std::string_view text, const std::string& source, const ImportRequest& request) {
  if (request.devices && *request.devices < 1)
    throw UserError("--devices: expected at least 1, got {}", *request.devices);
  if (request.batch && *request.batch < 1)
    throw UserError("--batch: expected at least 1, got {}", *request.batch);
  if (request.sequence_length && *request.sequence_length < 1)
    throw UserError("--seq: expected at least 1, got {}", *request.sequence_length);
  ImportedPlan imported;
  if (starts_with(trim(text), "{")) {
    imported.trainer = Trainer::deepspeed;
    import_deepspeed(text, source, request, imported);
  } else {
    imported.trainer = Trainer::megatron;
    import_megatron(text, source, request, imported);
  }
  return imported;
}

ImportedPlan read_import(const Path& path, const ImportRequest& request) {
  return import_plan(read_input_file(path, kMaxImportBytes), path.string(), request);
}

}  // namespace optimus
