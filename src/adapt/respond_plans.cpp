// Implements respond.h: responses that do not need a planner search. They distribute sequences or layers by
// speed, or add or remove the redundant copies of the state.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "adapt/respond.h"
#include "model/tensors.h"
#include "plan/layouts.h"
#include "plan/validate.h"
#include "search/stages.h"

namespace optimus {
namespace {

// The shape of a pipeline in which all layers have the same tp * cp and the same number of replicas. Such a
// pipeline can be split by replicas.
struct GridShape {
  int unit = 1, replicas = 1;  // unit: tp * cp
};
std::optional<GridShape> grid_of(const Pipeline& pipeline) {
  std::optional<GridShape> shape;
  for (const Stage& stage : pipeline.stages) {
    const LayerStrategy& first_strategy = stage.chunks.front().runs.front().strategy;
    for (const Chunk& chunk : stage.chunks)
      for (const BlockRun& run : chunk.runs)
        if (run.strategy.tp * run.strategy.cp != first_strategy.tp * first_strategy.cp) return std::nullopt;
    const int unit = first_strategy.tp * first_strategy.cp;
    const GridShape stage_shape{unit, static_cast<int>(stage.devices.size()) / unit};
    if (shape && (shape->unit != stage_shape.unit || shape->replicas != stage_shape.replicas))
      return std::nullopt;
    shape = stage_shape;
  }
  return shape;
}

double speed_of_replica(const Pipeline& pipeline, const GridShape& shape, int replica,
                        const std::vector<double>& speeds) {
  double slowest = 1e300;
  for (const Stage& stage : pipeline.stages)
    for (int i = replica * shape.unit; i < (replica + 1) * shape.unit; ++i)
      slowest =
          std::min(slowest, speeds[static_cast<std::size_t>(stage.devices[static_cast<std::size_t>(i)])]);
  return slowest;
}

Pipeline part_of(const Pipeline& whole, const GridShape& shape, const std::vector<int>& replicas) {
  Pipeline part = whole;
  for (Stage& stage : part.stages) {
    std::vector<int> devices;
    for (const int replica : replicas)
      for (int i = replica * shape.unit; i < (replica + 1) * shape.unit; ++i)
        devices.push_back(stage.devices[static_cast<std::size_t>(i)]);
    stage.devices = std::move(devices);
  }
  return part;
}

// Splits sequences into micro-batches of `size` sequences. The last one may be smaller.
std::vector<int> microbatches_of(std::int64_t sequences, int size) {
  std::vector<int> sizes(static_cast<std::size_t>(sequences / size), size);
  if (sequences % size != 0) sizes.push_back(static_cast<int>(sequences % size));
  return sizes;
}

// Splits sequences into nearly equal micro-batches of about `size` sequences per replica. Used because a
// number of sequences that is proportional to a speed is rarely a multiple of `size`.
std::vector<int> even_microbatches_of(std::int64_t sequences, std::int64_t replicas, int size) {
  const std::int64_t per_replica = sequences / replicas;
  const auto count = std::max<std::int64_t>(1, (2 * per_replica + size) / (2 * size));
  std::vector<int> sizes;
  for (std::int64_t i = 0; i < count; ++i)
    sizes.push_back(static_cast<int>((per_replica / count + (i < per_replica % count ? 1 : 0)) * replicas));
  sizes.back() += static_cast<int>(sequences % replicas);
  return sizes;
}

}  // namespace

std::optional<Plan> shared_by_speed(const Plan& plan, const std::vector<double>& speeds) {
  if (plan.pipelines.size() != 1) return std::nullopt;
  const Pipeline& pipeline = plan.pipelines.front();
  const std::optional<GridShape> shape = grid_of(pipeline);
  if (!shape || shape->replicas < 2) return std::nullopt;
  std::map<double, std::vector<int>, std::greater<>> by_speed;  // the fastest first
  for (int r = 0; r < shape->replicas; ++r)
    by_speed[speed_of_replica(pipeline, *shape, r, speeds)].push_back(r);
  if (by_speed.size() < 2) return std::nullopt;
  double total_speed = 0;
  for (const auto& [speed, replicas] : by_speed) total_speed += speed * static_cast<double>(replicas.size());
  const int size = std::max(1, pipeline.microbatches.front() / shape->replicas);
  Plan result = plan;
  result.pipelines.clear();
  std::int64_t remaining = plan.batch;
  for (auto it = by_speed.rbegin(); it != by_speed.rend();
       ++it) {  // the slowest first; the fastest replicas receive the remaining sequences
    const auto& [speed, replicas] = *it;
    const auto count = static_cast<std::int64_t>(replicas.size());
    const double share = static_cast<double>(plan.batch) * speed / total_speed;  // sequences of one replica
    const bool is_last = std::next(it) == by_speed.rend();
    const std::int64_t sequences = is_last ? remaining : std::llround(share) * count;
    if (sequences < count || sequences > remaining) return std::nullopt;  // a replica would have no sequence
    Pipeline part = part_of(pipeline, *shape, replicas);
    part.microbatches = even_microbatches_of(sequences, count, size);
    result.pipelines.push_back(std::move(part));
    remaining -= sequences;
  }
  return result;
}

namespace {

// Whether this number of replicas is divisible by the shard-group size of each layer.
bool can_share(const Pipeline& pipeline, int replicas) {
  for (const Stage& stage : pipeline.stages)
    for (const Chunk& chunk : stage.chunks)
      for (const BlockRun& run : chunk.runs)
        if (run.strategy.shard_group > 0 && replicas * run.strategy.cp % run.strategy.shard_group != 0)
          return false;
  return true;
}

}  // namespace

std::optional<Plan> without_slow_replicas(const Plan& plan, const std::vector<double>& speeds,
                                          double min_speed) {
  if (plan.pipelines.size() != 1) return std::nullopt;
  const Pipeline& pipeline = plan.pipelines.front();
  const std::optional<GridShape> shape = grid_of(pipeline);
  if (!shape) return std::nullopt;
  double fastest = 0;
  for (const double speed : speeds) fastest = std::max(fastest, speed);
  std::vector<int> remaining;
  for (int r = 0; r < shape->replicas; ++r)
    if (speed_of_replica(pipeline, *shape, r, speeds) >= min_speed * fastest) remaining.push_back(r);
  // Healthy replicas are dropped too if the remaining number is not divisible by the shard-group sizes. The
  // batch is distributed in whole sequences, so dropping a few replicas often adds no work to the others.
  while (!remaining.empty() && !can_share(pipeline, static_cast<int>(remaining.size()))) remaining.pop_back();
  const int count = static_cast<int>(remaining.size());
  if (count == 0 || count == shape->replicas || plan.batch < count) return std::nullopt;
  Plan result = plan;
  result.pipelines.front() = part_of(pipeline, *shape, remaining);
  const int size = std::max(1, pipeline.microbatches.front() / shape->replicas);
  // If the last micro-batch has fewer sequences than there are replicas, it is merged into the previous
  // micro-batch.
  std::vector<int>& sizes = result.pipelines.front().microbatches = microbatches_of(plan.batch, count * size);
  if (sizes.size() > 1 && sizes.back() < count) sizes[sizes.size() - 2] += sizes.back(), sizes.pop_back();
  return result;
}

namespace {

int layers_of(const Plan& plan, int stage) {
  int blocks = 0;
  for (const Chunk& chunk : plan.pipelines.front().stages[static_cast<std::size_t>(stage)].chunks)
    for (const BlockRun& run : chunk.runs) blocks += run.count;
  const bool is_last = stage + 1 == std::ssize(plan.pipelines.front().stages);
  return blocks - (stage == 0 ? 1 : 0) - (is_last ? 1 : 0);
}

// Merges the chunks of an interleaved stage into one, so that the stage can receive a contiguous range of
// layers. Returns false if the layers have different strategies.
bool merge_chunks(Stage& stage) {
  const LayerStrategy strategy = stage.chunks.front().runs.front().strategy;
  for (const Chunk& chunk : stage.chunks)
    for (const BlockRun& run : chunk.runs)
      if (!(run.strategy == strategy)) return false;
  stage.chunks.assign(1, Chunk{{BlockRun{.strategy = strategy}}});
  return true;
}

}  // namespace

std::optional<Plan> cut_by_speed(const Plan& plan, const ModelSpec& model, const std::vector<double>& speeds,
                                 const std::vector<double>& loads, std::optional<double> head) {
  if (plan.pipelines.size() != 1) return std::nullopt;
  Plan result = plan;
  Pipeline& pipeline = result.pipelines.front();
  const int num_stages = static_cast<int>(pipeline.stages.size()), layers = static_cast<int>(model.layers);
  if (num_stages < 2 || !grid_of(pipeline)) return std::nullopt;
  for (Stage& stage : pipeline.stages)
    if (!merge_chunks(stage)) return std::nullopt;
  if (result.schedule == Schedule::interleaved) result.schedule = Schedule::one_f_one_b;
  // The cost of the head relative to a layer, estimated from the numbers of parameters.
  const double embedding = static_cast<double>(model.vocab) * static_cast<double>(model.hidden);
  const double layer =
      (static_cast<double>(num_parameters(model)) - (model.is_tied ? 1 : 2) * embedding) / layers;
  const double head_layers = head.value_or(embedding / layer);
  std::vector<std::vector<double>> times(static_cast<std::size_t>(num_stages));
  for (int s = 0; s < num_stages; ++s) {
    double slowest = 1e300;
    for (const int device : pipeline.stages[static_cast<std::size_t>(s)].devices)
      slowest = std::min(slowest, speeds[static_cast<std::size_t>(device)]);
    const double extra_layers = s == num_stages - 1 ? head_layers : 0;
    // The measured load of the stage relative to the mean of all stages, divided by the load that its layers
    // and the head are expected to cause.
    const double expected = (layers_of(plan, s) + extra_layers) * num_stages / (layers + head_layers);
    const double load = loads.empty() || loads[static_cast<std::size_t>(s)] == 1
                            ? 1
                            : loads[static_cast<std::size_t>(s)] / expected;
    for (int n = 0; n <= layers; ++n)
      times[static_cast<std::size_t>(s)].push_back(n == 0 ? kInfeasible
                                                          : (n + extra_layers) * load / slowest);
  }
  const std::vector<int> layers_of_stage =
      distribute_layers(times, layers, static_cast<double>(pipeline.microbatches.size()));
  if (layers_of_stage.empty()) return std::nullopt;
  int block = 0;
  for (int s = 0; s < num_stages; ++s) {
    BlockRun& run = pipeline.stages[static_cast<std::size_t>(s)].chunks.front().runs.front();
    run.first_block = block;
    run.count =
        layers_of_stage[static_cast<std::size_t>(s)] + (s == 0 ? 1 : 0) + (s == num_stages - 1 ? 1 : 0);
    block += run.count;
  }
  if (result == plan) return std::nullopt;
  return result;
}

std::optional<Plan> with_other_redundancy(Plan plan, const std::vector<int>& node_of_device) {
  const bool has_copies = plan.copy_distance > 0;
  plan.copy_distance = has_copies ? 0 : 1;
  bool is_sharded = false;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs) is_sharded |= run.strategy.zero > 0;
  if (!is_sharded || find_problem(plan)) return std::nullopt;
  return has_copies ? plan : with_copies_in_other_domains(std::move(plan), node_of_device);
}

}  // namespace optimus
