// See evaluate.h.
#include "search/evaluate.h"

#include <algorithm>
#include <map>
#include <optional>

#include "schedule/sizes.h"

namespace optimus {
namespace {

Setup setup_of(const Demand& demand, const ClusterView& cluster_view, const Plan& plan) {
  return {plan,
          demand.model,
          cluster_view.cluster(),
          cluster_view.map(),
          demand.software,
          format_of(plan.precision)};
}

// The properties that determine the memory of a stage: its chunks, with blocks numbered from the first block
// of each chunk, and whether the chunks contain the embedding or the head.
struct StageContents {
  std::vector<Chunk> chunks;
  std::size_t width = 0;
  bool has_embedding = false, has_head = false;
  // For each run of blocks, the number of layers of the second kind, if the model has two kinds.
  std::vector<int> dense;
  bool operator==(const StageContents&) const = default;
};

StageContents contents_of(const Plan& plan, const ModelSpec& model, const Stage& stage) {
  StageContents contents{stage.chunks,
                         stage.devices.size(),
                         stage.chunks.front().first_block() == 0,
                         stage.chunks.back().end_block() == plan.num_blocks,
                         {}};
  for (Chunk& chunk : contents.chunks) {
    if (has_two_kinds_of_layers(model))
      for (const BlockRun& run : chunk.runs)
        contents.dense.push_back(num_dense(model, run.first_block - 1, run.first_block - 1 + run.count));
    const int first = chunk.first_block();
    for (BlockRun& run : chunk.runs) run.first_block -= first;
  }
  return contents;
}

Bytes min_memory_of(const ClusterView& cluster_view, const Stage& stage) {
  if (cluster_view.is_uniform()) return cluster_view.kinds().front().memory;
  const Cluster& cluster = cluster_view.cluster();
  Bytes smallest = cluster.type_of(cluster_view.map()[VirtualDevice{stage.devices.front()}]).memory;
  for (const int device : stage.devices)
    smallest = std::min(smallest, cluster.type_of(cluster_view.map()[VirtualDevice{device}]).memory);
  return smallest;
}

// Bytes of optimizer state that one device of the stage stores in host memory.
double offloaded_bytes(const Plan& plan, const ModelSpec& model, int pipeline, int number,
                       const Stage& stage) {
  std::optional<DeviceSizes> sizes;
  double bytes = 0;
  for (const Chunk& chunk : stage.chunks)
    for (const BlockRun& run : chunk.runs) {
      if (!run.strategy.offload) continue;
      if (!sizes) sizes.emplace(plan, model, PlanLocation{pipeline, number, 0});
      for (int block = run.first_block; block < run.first_block + run.count; ++block)
        bytes += static_cast<double>(sizes->state(block, StateKind::optimizer).value) *
                 (has_shard_copies(plan, run.strategy) ? 2 : 1);
    }
  return bytes;
}

// Sums the offloaded state of all devices of each node, and records the node with the least headroom.
void add_host_memory(const Demand& demand, const ClusterView& cluster_view, const Plan& plan,
                     PeakMemory& peak_memory) {
  std::map<int, PeakMemory> nodes;
  for (int p = 0; p < std::ssize(plan.pipelines); ++p) {
    const std::vector<Stage>& stages = plan.pipelines[static_cast<std::size_t>(p)].stages;
    for (int s = 0; s < std::ssize(stages); ++s) {
      const Stage& stage = stages[static_cast<std::size_t>(s)];
      const double bytes = offloaded_bytes(plan, demand.model, p, s, stage);
      if (bytes == 0) continue;
      for (const int device : stage.devices) {
        const Device physical = cluster_view.map()[VirtualDevice{device}];
        PeakMemory& node = nodes[cluster_view.cluster().node_of(physical)];
        node.host_bytes += bytes;
        node.host_limit = static_cast<double>(cluster_view.cluster().group_of(physical).host_memory.value);
      }
    }
  }
  for (const auto& [number, node] : nodes)
    // A limit of 0 means that the host memory of the node is not specified.
    if (node.host_limit > 0 &&
        (peak_memory.host_limit == 0 ||
         node.host_bytes - node.host_limit > peak_memory.host_bytes - peak_memory.host_limit))
      peak_memory.host_bytes = node.host_bytes, peak_memory.host_limit = node.host_limit;
}

}  // namespace

PeakMemory peak_memory_of(const Demand& demand, const ClusterView& cluster_view, const Plan& plan) {
  PeakMemory worst_peak;
  const Setup setup = setup_of(demand, cluster_view, plan);
  for (int p = 0; p < std::ssize(plan.pipelines); ++p) {
    const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(p)];
    std::vector<StageContents> known_contents;
    for (int s = 0; s < std::ssize(pipeline.stages); ++s) {
      const Stage& stage = pipeline.stages[static_cast<std::size_t>(s)];
      StageContents contents = contents_of(plan, demand.model, stage);
      // In every schedule, an earlier stage has at least as many micro-batches in flight as a later one.
      if (cluster_view.is_uniform() &&
          std::find(known_contents.begin(), known_contents.end(), contents) != known_contents.end())
        continue;
      known_contents.push_back(std::move(contents));
      const StageMemory memory = stage_memory(setup, p, s, demand.constants);
      const LayerStrategy& strategy = stage.chunks.front().runs.front().strategy;
      const int groups = (strategy.tp > 1) +
                         (data_parallel(stage, strategy) > 1 || plan.pipelines.size() > 1) +
                         (strategy.cp > 1) + (pipeline.stages.size() > 1) + (strategy.ep > 1);
      const DeviceType& type =
          cluster_view.cluster().type_of(cluster_view.map()[VirtualDevice{stage.devices.front()}]);
      const double bytes =
          process_bytes(demand, type, static_cast<double>(memory.total.value),
                        static_cast<double>((memory.activations + memory.buffers).value), groups);
      const auto limit = static_cast<double>(memory_limit(demand, min_memory_of(cluster_view, stage)).value);
      if (worst_peak.limit == 0 || bytes - limit > worst_peak.bytes - worst_peak.limit)
        worst_peak.bytes = bytes, worst_peak.limit = limit;
    }
  }
  add_host_memory(demand, cluster_view, plan, worst_peak);
  return worst_peak;
}

double seconds_of(const Demand& demand, const ClusterView& cluster_view, const Plan& plan) {
  return StepSimulator(setup_of(demand, cluster_view, plan)).seconds(demand.constants);
}

StepPrediction predict(const Demand& demand, const ClusterView& cluster_view, const Plan& plan,
                       bool stores_slots) {
  return StepSimulator(setup_of(demand, cluster_view, plan)).run(demand.constants, stores_slots);
}

}  // namespace optimus
