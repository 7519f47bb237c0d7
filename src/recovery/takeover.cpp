// See takeover.h.
#include "recovery/takeover.h"

#include <algorithm>
#include <numeric>

namespace optimus {
namespace {

// The number of devices that form one replica of a stage. Returns nullopt if this number differs between
// layers, or if state or experts are sharded across replicas.
std::optional<int> devices_per_replica(const Stage& stage) {
  std::optional<int> replica_size;
  for (const Chunk& chunk : stage.chunks)
    for (const BlockRun& run : chunk.runs) {
      const int run_devices = run.strategy.tp * run.strategy.cp;
      if ((replica_size && *replica_size != run_devices) || run.strategy.zero > 0 || run.strategy.ep > 1)
        return std::nullopt;
      replica_size = run_devices;
    }
  return replica_size;
}

// The stage without the replica that contains the device at `index`. Returns nullopt if the stage has no
// other replica.
std::optional<Stage> without_replica(Stage stage, int index) {
  const std::optional<int> replica_size = devices_per_replica(stage);
  if (!replica_size || std::ssize(stage.devices) <= *replica_size) return std::nullopt;
  const auto first = stage.devices.begin() + index / *replica_size * *replica_size;
  stage.devices.erase(first, first + *replica_size);
  return stage;
}

// Assigns each micro-batch to the pipeline that then has the smallest load relative to its previous load.
void assign_microbatches(std::vector<Pipeline>& pipelines, std::vector<int> sizes) {
  std::vector<double> speeds, loads;
  for (const Pipeline& pipeline : pipelines) {
    speeds.push_back(std::accumulate(pipeline.microbatches.begin(), pipeline.microbatches.end(), 0.0));
    loads.push_back(speeds.back());
  }
  std::sort(sizes.rbegin(), sizes.rend());
  for (const int size : sizes) {
    std::size_t best = 0;
    for (std::size_t p = 1; p < pipelines.size(); ++p)
      if ((loads[p] + size) / speeds[p] < (loads[best] + size) / speeds[best]) best = p;
    pipelines[best].microbatches.push_back(size);
    loads[best] += size;
  }
}

}  // namespace

std::optional<Plan> without_device(const Plan& plan, int device) {
  const PlanLocation location = location_of(plan, device);
  Plan result = plan;
  Pipeline& pipeline = result.pipelines[static_cast<std::size_t>(location.pipeline)];
  Stage& stage = pipeline.stages[static_cast<std::size_t>(location.stage)];
  if (std::optional<Stage> smaller = without_replica(stage, location.index)) {
    stage = std::move(*smaller);
    return result;
  }
  if (result.pipelines.size() < 2) return std::nullopt;
  const std::vector<int> microbatches = pipeline.microbatches;
  result.pipelines.erase(result.pipelines.begin() + location.pipeline);
  assign_microbatches(result.pipelines, microbatches);
  return result;
}

double seconds_lost_by_replanning(const ResponseTimes& times) {
  return times.pause + times.prepare + times.move;
}

double seconds_lost_by_takeover(const ResponseTimes& times) {
  const double lost_fraction = std::max(0.0, 1 - times.replanned_step / times.takeover_step);
  return times.pause + times.prepare * lost_fraction + times.switch_pause + times.move;
}

}  // namespace optimus
