// See evaluate.h.
#include "search/evaluate.h"

#include <algorithm>
#include <map>
#include <optional>

#include "schedule/sizes.h"

namespace optimus {
namespace {

Setup setup_of(const Demand& demand, const Ground& ground, const Plan& plan) {
  return {plan, demand.model, ground.cluster(), ground.map(), demand.software, format_of(plan.precision)};
}

// The contents of a stage: its chunks with blocks numbered from the chunk's first, and whether the ends of
// the model are among them.
struct Holding {
  std::vector<Chunk> chunks;
  std::size_t width = 0;
  bool has_embedding = false, has_head = false;
  std::vector<int> dense;  // per chunk: number of layers of the second kind, if the model has two
  bool operator==(const Holding&) const = default;
};

Holding holding_of(const Plan& plan, const ModelSpec& model, const Stage& stage) {
  Holding holding{stage.chunks,
                  stage.devices.size(),
                  stage.chunks.front().first() == 0,
                  stage.chunks.back().end() == plan.num_blocks,
                  {}};
  for (Chunk& chunk : holding.chunks) {
    if (has_two_kinds_of_layers(model))
      for (const BlockRun& run : chunk.runs)
        holding.dense.push_back(num_dense(model, run.first - 1, run.first - 1 + run.count));
    const int first = chunk.first();
    for (BlockRun& run : chunk.runs) run.first -= first;
  }
  return holding;
}

Bytes least_memory_of(const Ground& ground, const Stage& stage) {
  if (ground.is_uniform()) return ground.kinds().front().memory;
  const Cluster& cluster = ground.cluster();
  Bytes least = cluster.type_of(ground.map()[VirtualDevice{stage.devices.front()}]).memory;
  for (const int device : stage.devices)
    least = std::min(least, cluster.type_of(ground.map()[VirtualDevice{device}]).memory);
  return least;
}

// Bytes that one device of the stage stores in host memory.
double offloaded_bytes(const Plan& plan, const ModelSpec& model, int pipeline, int number,
                       const Stage& stage) {
  std::optional<DeviceSizes> sizes;
  double bytes = 0;
  for (const Chunk& chunk : stage.chunks)
    for (const BlockRun& run : chunk.runs) {
      if (!run.strategy.offload) continue;
      if (!sizes) sizes.emplace(plan, model, Seat{pipeline, number, 0});
      for (int block = run.first; block < run.first + run.count; ++block)
        bytes += static_cast<double>(sizes->state(block, StateKind::optimizer).value) *
                 (has_buddy(plan, run.strategy) ? 2 : 1);
    }
  return bytes;
}

// The host memory of a node stores the offloaded state of all its devices.
void see_hosts(const Demand& demand, const Ground& ground, const Plan& plan, Fill& fill) {
  std::map<int, Fill> nodes;
  for (int p = 0; p < std::ssize(plan.pipelines); ++p) {
    const std::vector<Stage>& stages = plan.pipelines[static_cast<std::size_t>(p)].stages;
    for (int s = 0; s < std::ssize(stages); ++s) {
      const Stage& stage = stages[static_cast<std::size_t>(s)];
      const double bytes = offloaded_bytes(plan, demand.model, p, s, stage);
      if (bytes == 0) continue;
      for (const int device : stage.devices) {
        const Device physical = ground.map()[VirtualDevice{device}];
        Fill& node = nodes[ground.cluster().node_of(physical)];
        node.host_bytes += bytes;
        node.host_limit = static_cast<double>(ground.cluster().group_of(physical).host_memory.value);
      }
    }
  }
  for (const auto& [number, node] : nodes)
    // 0: the host memory of the node is not specified.
    if (node.host_limit > 0 &&
        (fill.host_limit == 0 || node.host_bytes - node.host_limit > fill.host_bytes - fill.host_limit))
      fill.host_bytes = node.host_bytes, fill.host_limit = node.host_limit;
}

}  // namespace

Fill fill_of(const Demand& demand, const Ground& ground, const Plan& plan) {
  Fill worst;
  const Setup setup = setup_of(demand, ground, plan);
  for (int p = 0; p < std::ssize(plan.pipelines); ++p) {
    const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(p)];
    std::vector<Holding> seen;
    for (int s = 0; s < std::ssize(pipeline.stages); ++s) {
      const Stage& stage = pipeline.stages[static_cast<std::size_t>(s)];
      Holding holding = holding_of(plan, demand.model, stage);
      // In every schedule, a later stage has at most as many micro-batches in flight as an earlier one.
      if (ground.is_uniform() && std::find(seen.begin(), seen.end(), holding) != seen.end()) continue;
      seen.push_back(std::move(holding));
      const StageMemory memory = stage_memory(setup, p, s, demand.constants);
      const LayerStrategy& strategy = stage.chunks.front().runs.front().strategy;
      const int groups = (strategy.tp > 1) +
                         (data_parallel(stage, strategy) > 1 || plan.pipelines.size() > 1) +
                         (strategy.cp > 1) + (pipeline.stages.size() > 1) + (strategy.ep > 1);
      const DeviceType& type = ground.cluster().type_of(ground.map()[VirtualDevice{stage.devices.front()}]);
      const double bytes =
          process_bytes(demand, type, static_cast<double>(memory.total.value),
                        static_cast<double>((memory.activations + memory.buffers).value), groups);
      const auto limit = static_cast<double>(memory_limit(demand, least_memory_of(ground, stage)).value);
      if (worst.limit == 0 || bytes - limit > worst.bytes - worst.limit)
        worst.bytes = bytes, worst.limit = limit;
    }
  }
  see_hosts(demand, ground, plan, worst);
  return worst;
}

double seconds_of(const Demand& demand, const Ground& ground, const Plan& plan) {
  return StepSimulator(setup_of(demand, ground, plan)).seconds(demand.constants);
}

StepPrediction predict(const Demand& demand, const Ground& ground, const Plan& plan, bool keeps_slots) {
  return StepSimulator(setup_of(demand, ground, plan)).run(demand.constants, keeps_slots);
}

}  // namespace optimus
