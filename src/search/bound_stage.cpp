// Implements the part of bound.h that computes the costs of one stage: its slots, messages, reductions and
// updates. No value exceeds the simulated value. bound.cpp combines the values into the bound of a pipeline.
#include <algorithm>

#include "plan/layouts.h"
#include "search/bound.h"

namespace optimus {

int BoundModel::kind_of_stage(const Candidate& c, int s) const {
  return cluster_view_.slowest(s * c.width(), (s + 1) * c.width());
}

const SampleCost& BoundModel::sample_cost(int kind, const Candidate& c, RecomputeMode mode) {
  const bool is_same = kind == last_kind_ && c.tp == last_candidate_.tp && c.cp == last_candidate_.cp &&
                       c.ep == last_candidate_.ep && c.microbatch == last_candidate_.microbatch &&
                       c.sequence_parallel == last_candidate_.sequence_parallel;
  if (!is_same) {
    last_candidate_ = c, last_kind_ = kind;
    for (const SampleCost*& known_cost : last_sample_costs_) known_cost = nullptr;
  }
  const SampleCost*& known_cost = last_sample_costs_[static_cast<int>(mode)];
  if (known_cost == nullptr) {
    last_candidate_.recompute = mode;
    known_cost = &sample_costs_.of(kind, last_candidate_);
  }
  return *known_cost;
}

const BoundModel::Traffic& BoundModel::traffic_of(int kind, const Candidate& c,
                                                  const SampleCost& sample_cost) {
  static constexpr Traffic kNone;
  if (c.zero == kZeroWithoutTraffic) return kNone;
  const int data = c.dp * c.cp, shards = num_shards(c), expert_shards = num_expert_shards(c);
  const std::tuple key{kind, c.tp, c.ep, data, shards, expert_shards};
  if (last_traffic_ != nullptr && key == last_key_) return *last_traffic_;
  const auto [found, is_new] = traffic_.try_emplace(key);
  Traffic& traffic = found->second;
  last_key_ = key, last_traffic_ = &traffic;
  if (!is_new) return traffic;
  const GroupShape shard_group = cluster_view_.spread(kind, shards, c.tp),
                   replica_group = cluster_view_.spread(kind, data / shards, c.tp * shards);
  const int copies = c.width() / (c.ep * expert_shards);
  const GroupShape expert_shard_group = cluster_view_.spread(kind, expert_shards, c.ep),
                   expert_replica_group = cluster_view_.spread(kind, copies, c.ep * expert_shards);
  const Precision accumulators = demand_.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  const int gradient = state_bytes(demand_.precision, accumulators, StateKind::gradients);
  const bool is_8_bit = demand_.software.gathers_in_fp8 && format_of(demand_.precision).is_low_precision();
  const double weight = bytes_of(demand_.precision) * (is_8_bit ? 0.5 : 1);
  // Collectives in groups of one device take no time.
  const auto slot_cost_of = [&](Collective collective, const GroupShape& group, const GroupShape& of_experts,
                                double bytes, double expert_bytes) {
    const auto seconds = [&](const BlockBytes& block) {
      return links_.collective_seconds(collective, group, (block.elements - block.experts) * bytes) +
             links_.collective_seconds(collective, of_experts, block.experts * expert_bytes);
    };
    // A tied embedding is reduced separately, so it is omitted here.
    const bool is_tied = demand_.model.is_tied;
    SlotCost cost{0, seconds(sample_cost.layer), is_tied ? 0 : seconds(sample_cost.embedding),
                  is_tied ? 0 : seconds(sample_cost.head)};
    if (has_two_kinds_) cost.dense = seconds(sample_cost.dense) - cost.layer;
    return cost;
  };
  traffic.shard =
      slot_cost_of(Collective::reduce_scatter, shard_group, expert_shard_group, gradient, gradient);
  traffic.gather = slot_cost_of(Collective::gather, shard_group, expert_shard_group, weight, weight);
  traffic.replica =
      slot_cost_of(Collective::all_reduce, replica_group, expert_replica_group,
                   gradient / static_cast<double>(shards), gradient / static_cast<double>(expert_shards));
  return traffic;
}

// Counts the layers in their order, chunk by chunk. Unevenly distributed stages are assumed to start at the
// same layers as evenly distributed stages.
StageLayers BoundModel::dense_of(const Candidate& c, int s, const StageLayers& layers) const {
  StageLayers dense;
  if (!has_two_kinds_) return dense;
  int num_layers_before = 0;
  for (int chunk = 0; chunk < c.chunks; ++chunk) {
    const int part = chunk * c.pp + s;
    const int n = c.chunks == 1 ? layers.total() : split_layers(demand_.model.layers, c.pp * c.chunks, part);
    dense += count_dense(demand_.model, first_split_layer(demand_.model.layers, c.pp * c.chunks, part),
                         layers.part(num_layers_before, n));
    num_layers_before += n;
  }
  return dense;
}

BlockCounts BoundModel::block_counts_of(const Candidate& c, int s, const StageLayers& layers) const {
  return {layers.total(), dense_of(c, s, layers).total(), s == 0, s + 1 == c.pp};
}

std::pair<int, int> BoundModel::min_and_max_dense(const Candidate& c, int s) const {
  if (!has_two_kinds_) return {0, 0};
  Candidate candidate = c;
  const StageLayers layers = uniform_layers(RecomputeMode::none, split_layers(demand_.model.layers, c.pp, s));
  candidate.chunks = 1;
  int min_dense = dense_of(candidate, s, layers).total(), max_dense = min_dense;
  for (const ScheduleChoice& choice : schedule_choices(demand_, c.pp)) {
    candidate.chunks = choice.chunks;
    const int dense_layers = dense_of(candidate, s, layers).total();
    min_dense = std::min(min_dense, dense_layers), max_dense = std::max(max_dense, dense_layers);
  }
  return {min_dense, max_dense};
}

// `layers` are the layers of this chunk.
ChunkCost BoundModel::chunk_cost(const Candidate& c, int s, int chunk, const StageLayers& layers) {
  const int kind = kind_of_stage(c, s), n = layers.total();
  const SampleCost& sample = sample_cost(kind, c, c.recompute);
  const Traffic& traffic = traffic_of(kind, c, sample);
  const StageLayers dense = count_dense(
      demand_.model, first_split_layer(demand_.model.layers, c.pp * c.chunks, chunk * c.pp + s), layers);
  const BlockCounts block_counts{n, dense.total(), s == 0 && chunk == 0,
                                 s + 1 == c.pp && chunk + 1 == c.chunks};
  const bool is_split = c.schedule == Schedule::zero_bubble;
  const Software& software = demand_.software;
  ChunkCost cost;
  cost.forward = sample.forward.of(block_counts) - (is_split ? sample.hidden_by_weight_slot : 0);
  cost.backward = (is_split ? sample.input : sample.backward).of(block_counts);
  if (is_split) cost.weight = sample.weight.of(block_counts);
  for (const RecomputeMode mode : {RecomputeMode::selective, RecomputeMode::full})
    if (const int count = c.is_fitted ? layers.of(mode) : 0; count > 0) {
      const SampleCost& recomputed_sample = sample_cost(kind, c, mode);
      const SlotCost &slow = is_split ? recomputed_sample.input : recomputed_sample.backward,
                     &fast = is_split ? sample.input : sample.backward;
      cost.backward += count * (slow.layer - fast.layer) + dense.of(mode) * (slow.dense - fast.dense);
    }
  if (!has_copies(demand_, c)) return cost;
  // Communication that is concurrent with compute slows compute down, at most by half.
  double concurrent_forward = 0, concurrent_backward = 0;
  if (c.zero == 3) {
    // Gathers run at most two blocks ahead. A backward pass may not need the weights of the embedding and the
    // head (schedule/compile.cpp, needs_gather).
    const double gather_seconds = traffic.gather.of(block_counts),
                 gather_of_layers = traffic.gather.of({n, block_counts.dense}),
                 exposed_gather = std::max(0.0, gather_of_layers - 2 * traffic.gather.max_layer());
    if (software.overlaps_gather) {
      cost.forward = std::max(cost.forward, exposed_gather),
      cost.backward = std::max(cost.backward, exposed_gather);
      concurrent_forward = gather_seconds, concurrent_backward = is_split ? 0 : gather_of_layers;
    } else {
      cost.forward += gather_seconds, cost.backward += gather_of_layers;
    }
  }
  const bool reduces = software.overlaps_reduce && !is_split;
  if (c.zero >= 2 && reduces) concurrent_backward += traffic.shard.of(block_counts);
  const double interference = demand_.constants.interference,
               slowdown_limit = 0.5 * sample.backward_compute.of(block_counts);
  // The slowdown at the end of a slot hides communication at the start of the next slot. For a forward pass,
  // this is the transfer of tokens to experts or a gather. For a backward pass, it is the remaining part of a
  // gather.
  const auto slowdown = [&](double concurrent, double limit, double hidden) {
    return std::max(0.0, std::min(concurrent * interference, limit) - hidden);
  };
  cost.forward +=
      slowdown(concurrent_forward, 0.5 * sample.forward_compute.of(block_counts), sample.first_collective);
  const double usual_slowdown = slowdown(concurrent_backward, slowdown_limit, sample.hidden_by_weight_slot);
  cost.backward += usual_slowdown;
  const double last = concurrent_backward + traffic.replica.of(block_counts) +
                      (c.zero < 2 ? traffic.shard.of(block_counts) : 0);
  if (reduces)
    cost.interference = slowdown(last, slowdown_limit, sample.hidden_by_weight_slot) - usual_slowdown;
  return cost;
}

// With `has_message`, the caller sets the message time.
StageCost BoundModel::stage_cost(const Candidate& c, int s, const StageLayers& layers, bool has_message) {
  const int kind = kind_of_stage(c, s);
  const SampleCost& sample = sample_cost(kind, c, c.recompute);
  const Traffic& traffic = traffic_of(kind, c, sample);
  const bool is_first = s == 0, is_last = s + 1 == c.pp;
  StageCost stage;
  StageLayers previous_layers;
  ChunkCost cost;
  int num_layers_before = 0;
  for (int chunk = 0; chunk < c.chunks; ++chunk) {
    const int n = c.chunks == 1 ? layers.total()
                                : split_layers(demand_.model.layers, c.pp * c.chunks, chunk * c.pp + s);
    const StageLayers stage_layers = layers.part(num_layers_before, n);
    num_layers_before += n;
    // Most chunks equal the preceding chunk.
    if (chunk < 2 || !(stage_layers == previous_layers) || chunk + 1 == c.chunks || has_two_kinds_)
      cost = chunk_cost(c, s, chunk, stage_layers);
    previous_layers = stage_layers;
    if (chunk == 0) stage.first_forward = cost.forward, stage.last_backward = cost.backward;
    stage.max_chunk_forward = std::max(stage.max_chunk_forward, cost.forward);
    stage.forward += cost.forward, stage.backward += cost.backward, stage.weight += cost.weight;
    stage.interference += cost.interference;
  }
  stage.slack = sample.slack * c.chunks;
  const BlockCounts block_counts = block_counts_of(c, s, layers);
  stage.reduction = traffic.reduce(block_counts);
  if (c.zero >= 2) stage.repeated_reduction = traffic.shard.of(block_counts);
  stage.gather = traffic.gather.of(block_counts);
  stage.last_reduction =
      is_first ? traffic.reduce({0, 0, true}) : traffic.shard.min_layer() + traffic.replica.min_layer();
  stage.update = optimizer_seconds(c, sample, block_counts);
  stage.host_seconds_before = is_first || is_last ? sample.host_seconds_before : 0;
  if (c.pp > 1 && !has_message) stage.message = message_seconds(c, s, sample);
  return stage;
}

// Seconds taken by the optimizer updates of a stage. Every rank updates its shard of each block.
double BoundModel::optimizer_seconds(const Candidate& c, const SampleCost& sample_cost,
                                     const BlockCounts& block_counts) const {
  if (c.offload || c.zero == kZeroWithoutTraffic) return 0;
  const double shards = num_shards(c), of_experts = sample_cost.layer.experts / sample_cost.layer.elements;
  const double layer =
      sample_cost.update_layer * ((1 - of_experts) / shards + of_experts / num_expert_shards(c));
  double seconds = (block_counts.layers - block_counts.dense) * layer +
                   block_counts.dense * sample_cost.update_dense / shards;
  if (block_counts.has_embedding) seconds += sample_cost.update_embedding / shards;
  if (block_counts.has_head && !demand_.model.is_tied) seconds += sample_cost.update_head / shards;
  return c.copy_distance > 0 ? 2 * seconds : seconds;
}

// Stages that contain neither the embedding nor the head and have equal layers have equal costs.
bool BoundModel::equals_previous_stage(const Candidate& c, const std::vector<StageLayers>& layers,
                                       int s) const {
  const auto stage_index = static_cast<std::size_t>(s);
  // Number of stages whose chunks have one additional layer.
  const int num_longer_stages = static_cast<int>(demand_.model.layers % (c.pp * c.chunks)) % c.pp;
  return cluster_view_.is_uniform() && s > 1 && s + 1 < c.pp &&
         layers[stage_index] == layers[stage_index - 1] && (c.chunks == 1 || s != num_longer_stages) &&
         (!has_two_kinds_ ||
          dense_of(c, s, layers[stage_index]) == dense_of(c, s - 1, layers[stage_index - 1]));
}

std::vector<StageCost> BoundModel::stage_costs(const Candidate& c, const std::vector<StageLayers>& layers) {
  std::vector<StageCost> stages;
  stages.reserve(layers.size());
  // If stages consist of whole nodes, all links between stages are equal.
  const NodeGroup& group = cluster_view_.group_of(0);
  const bool has_equal_links = cluster_view_.num_devices() == cluster_view_.cluster().num_devices() &&
                               c.width() % std::max(group.devices_per_node, group.devices_per_domain) == 0;
  for (int s = 0; s < c.pp; ++s) {
    const bool equals_previous = equals_previous_stage(c, layers, s);
    const bool has_message = has_equal_links && s > 0;
    stages.push_back(equals_previous ? stages.back()
                                     : stage_cost(c, s, layers[static_cast<std::size_t>(s)], has_message));
    if (has_message) stages.back().message = stages.front().message;
    // The message to the next stage stays inside a node or crosses nodes, depending on where the stage ends.
    if (equals_previous && !has_equal_links)
      stages.back().message = message_seconds(c, s, sample_cost(kind_of_stage(c, s), c, c.recompute));
  }
  return stages;
}

double BoundModel::message_seconds(const Candidate& c, int s, const SampleCost& sample_cost) const {
  const Device device = cluster_view_.map()[VirtualDevice{s * c.width()}],
               next_device = cluster_view_.map()[VirtualDevice{(s + 1) % c.pp * c.width()}];
  return links_.message_seconds(cluster_view_.cluster().link(device, next_device),
                                sample_cost.boundary_bytes);
}

}  // namespace optimus
