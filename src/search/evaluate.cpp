// See evaluate.h.
#include "search/evaluate.h"

#include <algorithm>

namespace optimus {
namespace {

Setup setup_of(const Demand& demand, const Ground& ground, const Plan& plan) {
  return {plan, demand.model, ground.cluster(), ground.map(), demand.software, format_of(plan.precision)};
}

// Blocks counted from the chunk's first, and whether the ends of the model are among them.
struct Holding {
  std::vector<Chunk> chunks;
  std::size_t width = 0;
  bool has_embedding = false, has_head = false;
  bool operator==(const Holding&) const = default;
};

Holding holding_of(const Plan& plan, const Stage& stage) {
  Holding holding{stage.chunks, stage.devices.size(), stage.chunks.front().first() == 0,
                  stage.chunks.back().end() == plan.num_blocks};
  for (Chunk& chunk : holding.chunks) {
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

}  // namespace

Fill fill_of(const Demand& demand, const Ground& ground, const Plan& plan) {
  Fill worst;
  const Setup setup = setup_of(demand, ground, plan);
  for (int p = 0; p < std::ssize(plan.pipelines); ++p) {
    const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(p)];
    std::vector<Holding> seen;
    for (int s = 0; s < std::ssize(pipeline.stages); ++s) {
      const Stage& stage = pipeline.stages[static_cast<std::size_t>(s)];
      Holding holding = holding_of(plan, stage);
      // No schedule has more under way in a later stage than in an earlier one.
      if (ground.is_uniform() && std::find(seen.begin(), seen.end(), holding) != seen.end()) continue;
      seen.push_back(std::move(holding));
      const StageMemory memory = stage_memory(setup, p, s, demand.constants);
      const LayerStrategy& strategy = stage.chunks.front().runs.front().strategy;
      const int groups = (strategy.tp > 1) +
                         (data_parallel(stage, strategy) > 1 || plan.pipelines.size() > 1) +
                         (strategy.cp > 1) + (pipeline.stages.size() > 1);
      const DeviceType& type = ground.cluster().type_of(ground.map()[VirtualDevice{stage.devices.front()}]);
      const double bytes =
          process_bytes(demand, type, static_cast<double>(memory.total.value),
                        static_cast<double>((memory.activations + memory.buffers).value), groups);
      const auto limit = static_cast<double>(memory_limit(demand, least_memory_of(ground, stage)).value);
      if (worst.limit == 0 || bytes - limit > worst.bytes - worst.limit) worst = {bytes, limit};
    }
  }
  return worst;
}

double seconds_of(const Demand& demand, const Ground& ground, const Plan& plan) {
  return StepSimulator(setup_of(demand, ground, plan)).seconds(demand.constants);
}

StepPrediction predict(const Demand& demand, const Ground& ground, const Plan& plan) {
  return StepSimulator(setup_of(demand, ground, plan)).run(demand.constants);
}

}  // namespace optimus
