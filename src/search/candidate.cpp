// See candidate.h.
#include "search/candidate.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace optimus {
namespace {

std::vector<int> permitted_values(const std::set<int>& values, const std::optional<Range>& range) {
  std::vector<int> result;
  for (const int value : values)
    if (!range || range->contains(value)) result.push_back(value);
  return result;
}

// Powers of two up to `limit`, and both ends of the user's range, which need not be powers of two.
std::set<int> powers_of_two(std::int64_t limit, const std::optional<Range>& range) {
  std::set<int> values;
  for (std::int64_t value = 1; value <= limit; value *= 2) values.insert(static_cast<int>(value));
  if (range)
    for (const int end : {range->min, range->max})
      if (end <= limit && end >= 1) values.insert(end);
  return values;
}

// The smallest distance between a shard and its copy that places them on different nodes, or 1 if that is
// impossible. Shards are `stride` devices apart, and a node has `per_node` devices.
int copy_distance_across_nodes(int num_shards, int stride, int per_node) {
  const int in_node = std::max(1, per_node / stride);
  return in_node < num_shards ? in_node : 1;
}

}  // namespace

int num_shards(const Candidate& c) {
  return c.zero <= 0 ? 1 : c.shard_group > 0 ? c.shard_group : c.dp * c.cp;
}

int num_expert_shards(const Candidate& c) {
  const int num_sharing_devices = num_shards(c) * c.tp;
  return c.zero > 0 && num_sharing_devices % c.ep == 0 ? num_sharing_devices / c.ep : 1;
}

LayerStrategy strategy_of(const Candidate& c) {
  LayerStrategy s;
  s.tp = c.tp, s.cp = c.cp, s.ep = c.ep, s.sequence_parallel = c.sequence_parallel;
  s.zero = c.zero, s.shard_group = c.shard_group;
  s.recompute = c.recompute, s.offload = c.offload;
  return s;
}

Plan plan_of(const Demand& demand, const Candidate& c) {
  UniformPlan shape{.pp = c.pp, .dp = c.dp, .chunks = c.chunks, .strategy = strategy_of(c)};
  shape.microbatch = c.microbatch;
  shape.batch = demand.batch, shape.sequence_length = demand.sequence_length;
  shape.schedule = c.schedule, shape.precision = demand.precision;
  Plan plan = uniform_plan(demand.model, shape);
  plan.copy_distance = c.copy_distance;
  return plan;
}

int StageLayers::of(RecomputeMode mode) const {
  switch (mode) {
    case RecomputeMode::none:
      return none;
    case RecomputeMode::selective:
      return selective;
    case RecomputeMode::full:
      return full;
  }
  return 0;
}

StageLayers StageLayers::part(int begin, int count) const {
  const auto overlap = [&](int from, int size) {
    return std::max(0, std::min(begin + count, from + size) - std::max(begin, from));
  };
  return {overlap(0, full), overlap(full, selective), overlap(full + selective, none)};
}

StageLayers& StageLayers::operator+=(const StageLayers& other) {
  full += other.full, selective += other.selective, none += other.none;
  return *this;
}

bool has_two_kinds_of_layers(const ModelSpec& model) {
  return model.is_mixture() && (model.mixture.first_layer > 0 || model.mixture.layer_interval > 1);
}

int num_dense(const ModelSpec& model, int begin, int end) {
  if (!has_two_kinds_of_layers(model)) return 0;
  int count = 0;
  for (int layer = begin; layer < end; ++layer) count += !model.is_mixture_layer(layer);
  return count;
}

StageLayers count_dense(const ModelSpec& model, int first, const StageLayers& layers) {
  const int selective = first + layers.full, none = selective + layers.selective;
  return {num_dense(model, first, selective), num_dense(model, selective, none),
          num_dense(model, none, none + layers.none)};
}

StageLayers uniform_layers(RecomputeMode mode, int count) {
  return {mode == RecomputeMode::full ? count : 0, mode == RecomputeMode::selective ? count : 0,
          mode == RecomputeMode::none ? count : 0};
}

int split_layers(std::int64_t layers, int parts, int i) {
  return static_cast<int>(layers / parts + (i < layers % parts ? 1 : 0));
}

int first_split_layer(std::int64_t layers, int parts, int i) {
  return static_cast<int>(layers / parts * i + std::min<std::int64_t>(i, layers % parts));
}

namespace {

// The layers of a chunk that starts with block `first`, as runs of equal strategy. Embedding and head are
// added to the adjacent run.
Chunk chunk_of(const LayerStrategy& strategy, const StageLayers& layers, int first, bool has_embedding,
               bool has_head) {
  Chunk chunk;
  for (const RecomputeMode mode : {RecomputeMode::full, RecomputeMode::selective, RecomputeMode::none}) {
    const int count = layers.of(mode);
    if (count == 0) continue;
    BlockRun run{first, count, strategy};
    run.strategy.recompute = mode;
    first += count;
    chunk.runs.push_back(run);
  }
  if (has_embedding) {
    for (BlockRun& run : chunk.runs) ++run.first_block;
    chunk.runs.front().first_block = first - layers.total(), ++chunk.runs.front().count;
  }
  if (has_head) ++chunk.runs.back().count;
  return chunk;
}

}  // namespace

Plan plan_of(const Demand& demand, const Candidate& c, const std::vector<StageLayers>& layers,
             const std::vector<int>& parts) {
  Plan plan = plan_of(demand, c);
  Pipeline& pipeline = plan.pipelines.front();
  int first = 0;
  std::vector<int> num_used(layers.size());  // [stage]: layers that preceding chunks have used
  for (int chunk = 0; chunk < c.chunks; ++chunk)
    for (int s = 0; s < c.pp; ++s) {
      const StageLayers& stage_layers = layers[static_cast<std::size_t>(s)];
      const int remaining = stage_layers.total() - num_used[static_cast<std::size_t>(s)];
      const int part = chunk * c.pp + s;
      const int count = c.chunks == 1   ? remaining
                        : parts.empty() ? split_layers(demand.model.layers, c.pp * c.chunks, part)
                                        : parts[static_cast<std::size_t>(part)];
      const bool has_embedding = s == 0 && chunk == 0, has_head = s + 1 == c.pp && chunk + 1 == c.chunks;
      Chunk& target = pipeline.stages[static_cast<std::size_t>(s)].chunks[static_cast<std::size_t>(chunk)];
      target = chunk_of(strategy_of(c), stage_layers.part(num_used[static_cast<std::size_t>(s)], count),
                        first, has_embedding, has_head);
      num_used[static_cast<std::size_t>(s)] += count;
      first = target.end_block();
    }
  return plan;
}

MicrobatchCount count_microbatches(std::int64_t batch, int microbatch, int dp) {
  const std::int64_t full_size = static_cast<std::int64_t>(microbatch) * dp;
  const std::int64_t remainder = batch % full_size;
  MicrobatchCount count{static_cast<int>(batch / full_size), 1};
  // Replicas with one sequence fewer wait for the other replicas.
  if (remainder > 0)
    ++count.number, count.last_size = static_cast<double>((remainder + dp - 1) / dp) / microbatch;
  if (batch < full_size) count.last_size = 1;  // a single micro-batch counts as a full one
  return count;
}

std::int64_t max_tensor_parts(const ModelSpec& model) {
  // Tensor parallelism does not split experts.
  const bool has_columns = !model.is_mixture() || has_two_kinds_of_layers(model);
  return std::min({model.heads, has_columns ? model.ffn : model.vocab, model.vocab});
}

std::vector<int> tensor_choices(const Demand& demand, int num_devices) {
  const std::int64_t max_tp = std::min<std::int64_t>(
      {max_tensor_parts(demand.model), num_devices,
       // Larger sizes than a few domains bring no gain, because replicated work and message sizes stay the
       // same.
       std::max<std::int64_t>(8, 4LL * demand.cluster.profile().groups.front().devices_per_domain)});
  std::set<int> values = powers_of_two(max_tp, demand.constraints.tp);
  for (int tp = 1; tp <= std::min<std::int64_t>(max_tp, 64); ++tp)
    if (demand.model.heads % tp == 0 && num_devices % tp == 0) values.insert(tp);
  // fp8 GEMMs are not possible if devices share a key/value head. An explicit --tp is accepted here, so that
  // the error is reported later.
  if (demand.precision == Precision::fp8 && !demand.constraints.tp)
    std::erase_if(values, [&](int tp) { return demand.model.kv_heads % tp != 0; });
  return permitted_values(values, demand.constraints.tp);
}

std::vector<int> context_choices(const Demand& demand, int num_devices) {
  // With fewer than 512 positions per device, GEMMs are too small to be efficient on any device.
  const std::int64_t max_cp =
      std::min<std::int64_t>(num_devices, std::max<std::int64_t>(1, demand.sequence_length / 512));
  std::set<int> values = powers_of_two(std::min<std::int64_t>(max_cp, 64), {});
  if (demand.constraints.cp)
    for (const int end : {demand.constraints.cp->min, demand.constraints.cp->max})
      if (end >= 1 && end <= std::min<std::int64_t>(num_devices, demand.sequence_length)) values.insert(end);
  return permitted_values(values, demand.constraints.cp);
}

std::vector<int> expert_choices(const Demand& demand, int num_devices) {
  std::set<int> values = {1};
  const std::int64_t experts = demand.model.mixture.experts;
  for (int ep = 2; ep <= std::min<std::int64_t>(experts, num_devices); ++ep)
    if (experts % ep == 0) values.insert(ep);
  return permitted_values(values, demand.constraints.ep);
}

std::vector<int> pipeline_choices(const Demand& demand, int num_devices) {
  std::set<int> values;
  for (int pp = 1; pp <= std::min<std::int64_t>(num_devices, demand.model.layers); ++pp) values.insert(pp);
  return permitted_values(values, demand.constraints.pp);
}

std::vector<int> microbatch_choices(const Demand& demand, int cp) {
  // More tokens than this in a micro-batch do not make any GEMM more efficient.
  constexpr std::int64_t kMaxTokens = 65536;
  const std::int64_t max_microbatch = std::max<std::int64_t>(1, kMaxTokens * cp / demand.sequence_length);
  const std::optional<Range>& range = demand.constraints.microbatch;
  std::set<int> values = powers_of_two(std::min<std::int64_t>({demand.batch, 64, max_microbatch}), {});
  if (range)
    for (const int end : {range->min, range->max})
      if (end >= 1 && end <= demand.batch) values.insert(end);
  return permitted_values(values, range);
}

std::vector<RecomputeMode> recompute_choices(const Demand& demand) {
  if (!demand.constraints.recompute.empty())
    return {parse_recompute(demand.constraints.recompute, "--recompute")};
  return {RecomputeMode::none, RecomputeMode::full};  // fitted candidates cover the modes in between
}

int replica_multiple(const Candidate& c) { return c.ep / std::gcd(c.ep, c.tp * c.cp); }

std::vector<int> data_choices(const Demand& demand, int max_dp, int microbatch, int step) {
  const std::optional<Range>& range = demand.constraints.dp;
  max_dp = max_dp / step * step;
  const int max_replicas =
      static_cast<int>(std::min<std::int64_t>(max_dp, std::max<std::int64_t>(1, demand.batch / microbatch))) /
      step * step;
  if (max_replicas < 1) return {};
  // If the batch is not divisible, fewer replicas may be enough for the same number of micro-batches. With
  // several sequences per micro-batch, the last micro-batch may be shorter instead.
  const MicrobatchCount count = count_microbatches(demand.batch, microbatch, max_replicas);
  const std::int64_t sequences = static_cast<std::int64_t>(count.number) * microbatch;
  const auto min_replicas = static_cast<int>((demand.batch + sequences - 1) / sequences);
  std::set<int> values = {std::min(max_replicas, (min_replicas + step - 1) / step * step)};
  if (microbatch > 1) values.insert(max_replicas);
  if (demand.goal != Goal::throughput)
    for (int dp = max_replicas; dp >= step; dp = dp / 2 / step * step) values.insert(dp);
  if (range) {
    const int max_allowed = std::min(max_dp, range->max) / step * step;
    if (max_allowed >= range->min && max_allowed >= 1) values.insert(max_allowed);
  }
  return permitted_values(values, range);
}

std::vector<ScheduleChoice> schedule_choices(const Demand& demand, int pp) {
  const Constraints& c = demand.constraints;
  const bool is_any = c.schedule.empty();
  const auto is_allowed = [&](Schedule schedule) {
    return is_any || parse_schedule(c.schedule, "--schedule") == schedule;
  };
  std::vector<ScheduleChoice> choices;
  const bool allows_one_chunk = !c.chunks || c.chunks->contains(1);
  if (allows_one_chunk && (is_allowed(Schedule::one_f_one_b) || (is_any && pp == 1)))
    choices.push_back({Schedule::one_f_one_b, 1});
  // GPipe takes as long as 1F1B and needs more memory, so it is used only on request.
  if (allows_one_chunk && !is_any && is_allowed(Schedule::gpipe)) choices.push_back({Schedule::gpipe, 1});
  if (allows_one_chunk && (pp > 1 || !is_any) && is_allowed(Schedule::zero_bubble))
    choices.push_back({Schedule::zero_bubble, 1});
  if ((pp > 1 || !is_any) && is_allowed(Schedule::interleaved))
    for (const int chunks : {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16})
      if (static_cast<std::int64_t>(pp) * chunks <= demand.model.layers &&
          (!c.chunks || c.chunks->contains(chunks)))
        choices.push_back({Schedule::interleaved, chunks});
  return choices;
}

bool has_copies(const Demand& demand, const Candidate& c) {
  return c.dp * c.cp > 1 || (demand.model.is_mixture() && c.width() > c.ep);
}

std::vector<ZeroChoice> zero_choices(const Demand& demand, const Candidate& candidate, int in_domain) {
  const Constraints& c = demand.constraints;
  const int data = candidate.dp * candidate.cp;
  const auto is_allowed = [&](int zero) {
    return (!c.zero || c.zero->contains(zero)) && !(zero == 3 && c.no_zero3);
  };
  std::vector<ZeroChoice> choices;
  if (is_allowed(0)) choices.push_back({0, 0});
  for (int zero = 1; zero <= 3; ++zero) {
    if (!is_allowed(zero) || (!has_copies(demand, candidate) && !c.zero)) continue;
    choices.push_back({zero, 0});
    // If state is sharded over all replicas, there is only one copy of it. A second copy is useful if devices
    // fail. Experts do not support a second copy.
    if (demand.failures.mtbf.value > 0 && demand.software.runs_programs && data > 1 &&
        !demand.model.is_mixture())
      choices.push_back({zero, 0,
                         copy_distance_across_nodes(
                             data, candidate.tp, demand.cluster.profile().groups.front().devices_per_node)});
    // Shards inside one domain or a few domains, and replicates across these groups.
    for (const int domains : {1, 4, 16})
      if (const int group = in_domain * domains; group > 1 && group < data && data % group == 0)
        choices.push_back({zero, group});
  }
  return choices;
}

}  // namespace optimus
