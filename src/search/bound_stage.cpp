// Implements the part of bound.h that prices one stage: its slots, messages, reductions and updates. No value
// exceeds the simulated one. bound.cpp combines them into the bound of a pipeline.
#include <algorithm>

#include "plan/layouts.h"
#include "search/bound.h"
#include "search/bound_cost.h"

namespace optimus {

int Bounder::kind_of_stage(const Candidate& c, int s) const {
  return ground_.slowest(s * c.width(), (s + 1) * c.width());
}

const Specimen& Bounder::specimen(int kind, const Candidate& c, RecomputeMode mode) {
  const bool is_same = kind == last_kind_ && c.tp == last_.tp && c.cp == last_.cp && c.ep == last_.ep &&
                       c.microbatch == last_.microbatch && c.sequence_parallel == last_.sequence_parallel;
  if (!is_same) {
    last_ = c, last_kind_ = kind;
    for (const Specimen*& known : last_specimens_) known = nullptr;
  }
  const Specimen*& known = last_specimens_[static_cast<int>(mode)];
  if (known == nullptr) {
    last_.recompute = mode;
    known = &specimens_.of(kind, last_);
  }
  return *known;
}

const Bounder::Traffic& Bounder::traffic(int kind, const Candidate& c, const Specimen& specimen) {
  static constexpr Traffic kNone;
  if (c.zero == kNoTraffic) return kNone;
  const int data = c.dp * c.cp, shards = num_shards(c), expert_shards = num_expert_shards(c);
  const std::tuple key{kind, c.tp, c.ep, data, shards, expert_shards};
  if (last_traffic_ != nullptr && key == last_key_) return *last_traffic_;
  const auto [found, is_new] = traffic_.try_emplace(key);
  Traffic& t = found->second;
  last_key_ = key, last_traffic_ = &t;
  if (!is_new) return t;
  const GroupShape shard_group = ground_.spread(kind, shards, c.tp),
                   replica_group = ground_.spread(kind, data / shards, c.tp * shards);
  const int copies = c.width() / (c.ep * expert_shards);
  const GroupShape expert_shard_group = ground_.spread(kind, expert_shards, c.ep),
                   expert_replica_group = ground_.spread(kind, copies, c.ep * expert_shards);
  const Precision accumulators = demand_.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  const int gradient = state_bytes(demand_.precision, accumulators, StateKind::gradients);
  const bool is_8_bit = demand_.software.gathers_in_fp8 && format_of(demand_.precision).is_narrow();
  const double weight = bytes_of(demand_.precision) * (is_8_bit ? 0.5 : 1);
  // Groups of one rank take no time.
  const auto each = [&](Collective collective, const GroupShape& group, const GroupShape& of_experts,
                        double bytes, double expert_bytes) {
    const auto seconds = [&](const BlockBytes& block) {
      return links_.collective(collective, group, (block.elements - block.experts) * bytes) +
             links_.collective(collective, of_experts, block.experts * expert_bytes);
    };
    // A tied embedding is reduced differently; it is omitted here.
    const bool is_tied = demand_.model.is_tied;
    SlotCost cost{0, seconds(specimen.layer), is_tied ? 0 : seconds(specimen.embedding),
                  is_tied ? 0 : seconds(specimen.head)};
    if (has_two_kinds_) cost.dense = seconds(specimen.dense) - cost.layer;
    return cost;
  };
  t.shard = each(Collective::reduce_scatter, shard_group, expert_shard_group, gradient, gradient);
  t.gather = each(Collective::gather, shard_group, expert_shard_group, weight, weight);
  t.replica = each(Collective::all_reduce, replica_group, expert_replica_group,
                   gradient / static_cast<double>(shards), gradient / static_cast<double>(expert_shards));
  return t;
}

// In the order of the blocks, chunk by chunk. Unevenly distributed stages are assumed to begin where even
// ones do.
StageLayers Bounder::dense_of(const Candidate& c, int s, const StageLayers& layers) const {
  StageLayers dense;
  if (!has_two_kinds_) return dense;
  int used = 0;
  for (int chunk = 0; chunk < c.chunks; ++chunk) {
    const int part = chunk * c.pp + s;
    const int n = c.chunks == 1 ? layers.total() : dealt(demand_.model.layers, c.pp * c.chunks, part);
    dense += dense_among(demand_.model, first_dealt(demand_.model.layers, c.pp * c.chunks, part),
                         layers.part(used, n));
    used += n;
  }
  return dense;
}

Held Bounder::held_by(const Candidate& c, int s, const StageLayers& layers) const {
  return {layers.total(), dense_of(c, s, layers).total(), s == 0, s + 1 == c.pp};
}

std::pair<int, int> Bounder::least_and_most_dense(const Candidate& c, int s) const {
  if (!has_two_kinds_) return {0, 0};
  Candidate other = c;
  const StageLayers layers = layers_in(RecomputeMode::none, dealt(demand_.model.layers, c.pp, s));
  other.chunks = 1;
  int least = dense_of(other, s, layers).total(), most = least;
  for (const ScheduleChoice& choice : schedule_choices(demand_, c.pp)) {
    other.chunks = choice.chunks;
    const int here = dense_of(other, s, layers).total();
    least = std::min(least, here), most = std::max(most, here);
  }
  return {least, most};
}

// layers: those of this chunk.
Bounder::ChunkCost Bounder::chunk_cost(const Candidate& c, int s, int chunk, const StageLayers& layers) {
  const int kind = kind_of_stage(c, s), n = layers.total();
  const Specimen& own = specimen(kind, c, c.recompute);
  const Traffic& t = traffic(kind, c, own);
  const StageLayers dense = dense_among(
      demand_.model, first_dealt(demand_.model.layers, c.pp * c.chunks, chunk * c.pp + s), layers);
  const Held held{n, dense.total(), s == 0 && chunk == 0, s + 1 == c.pp && chunk + 1 == c.chunks};
  const bool is_split = c.schedule == Schedule::zero_bubble;
  const Software& software = demand_.software;
  ChunkCost cost;
  cost.forward = own.forward.of(held) - (is_split ? own.hidden_by_weights : 0);
  cost.backward = (is_split ? own.input : own.backward).of(held);
  if (is_split) cost.weight = own.weight.of(held);
  for (const RecomputeMode mode : {RecomputeMode::selective, RecomputeMode::full})
    if (const int count = c.is_fitted ? layers.of(mode) : 0; count > 0) {
      const Specimen& other = specimen(kind, c, mode);
      const SlotCost &slow = is_split ? other.input : other.backward,
                     &quick = is_split ? own.input : own.backward;
      cost.backward += count * (slow.layer - quick.layer) + dense.of(mode) * (slow.dense - quick.dense);
    }
  if (!has_copies(demand_, c)) return cost;
  // Communication concurrent with compute slows it down, by half at most.
  double beside_forward = 0, beside_backward = 0;
  if (c.zero == 3) {
    // Gathers run at most two blocks ahead. A backward may not need the weights of the model's ends
    // (schedule/compile.cpp, needs_gather).
    const double all = t.gather.of(held), layers_alone = t.gather.of({n, held.dense}),
                 least = std::max(0.0, layers_alone - 2 * t.gather.most_layer());
    if (software.overlaps_gather) {
      cost.forward = std::max(cost.forward, least), cost.backward = std::max(cost.backward, least);
      beside_forward = all, beside_backward = is_split ? 0 : layers_alone;
    } else {
      cost.forward += all, cost.backward += layers_alone;
    }
  }
  const bool reduces = software.overlaps_reduce && !is_split;
  if (c.zero >= 2 && reduces) beside_backward += t.shard.of(held);
  const double interference = demand_.constants.interference, most = 0.5 * own.backward_compute.of(held);
  // The slowdown at the end of a slot hides what the next slot begins with: for a forward, the transfer of
  // tokens to experts or a gather; for a backward, the rest of a gather.
  const auto slowed = [&](double beside, double limit, double hides) {
    return std::max(0.0, std::min(beside * interference, limit) - hides);
  };
  cost.forward += slowed(beside_forward, 0.5 * own.forward_compute.of(held), own.first_collective);
  const double usual = slowed(beside_backward, most, own.hidden_by_weights);
  cost.backward += usual;
  const double last = beside_backward + t.replica.of(held) + (c.zero < 2 ? t.shard.of(held) : 0);
  if (reduces) cost.interference = slowed(last, most, own.hidden_by_weights) - usual;
  return cost;
}

// has_message: the caller sets the message time.
Bounder::StageCost Bounder::stage_cost(const Candidate& c, int s, const StageLayers& layers,
                                       bool has_message) {
  const int kind = kind_of_stage(c, s);
  const Specimen& own = specimen(kind, c, c.recompute);
  const Traffic& t = traffic(kind, c, own);
  const bool is_first = s == 0, is_last = s + 1 == c.pp;
  StageCost stage;
  StageLayers before;
  ChunkCost cost;
  int used = 0;
  for (int chunk = 0; chunk < c.chunks; ++chunk) {
    const int n =
        c.chunks == 1 ? layers.total() : dealt(demand_.model.layers, c.pp * c.chunks, chunk * c.pp + s);
    const StageLayers here = layers.part(used, n);
    used += n;
    // Most chunks equal the preceding one.
    if (chunk < 2 || !(here == before) || chunk + 1 == c.chunks || has_two_kinds_)
      cost = chunk_cost(c, s, chunk, here);
    before = here;
    if (chunk == 0) stage.first_forward = cost.forward, stage.last_backward = cost.backward;
    stage.longest_forward = std::max(stage.longest_forward, cost.forward);
    stage.forward += cost.forward, stage.backward += cost.backward, stage.weight += cost.weight;
    stage.interference += cost.interference;
  }
  stage.slack = own.slack * c.chunks;
  const Held held = held_by(c, s, layers);
  stage.reduced = t.reduce(held);
  if (c.zero >= 2) stage.scattered = t.shard.of(held);
  stage.gathered = t.gather.of(held);
  stage.last_reduced = is_first ? t.reduce({0, 0, true}) : t.shard.least_layer() + t.replica.least_layer();
  stage.update = update_of(c, own, held);
  stage.before = is_first || is_last ? own.before : 0;
  if (c.pp > 1 && !has_message) stage.message = message(c, s, own);
  return stage;
}

// Every rank updates its shard of each block.
double Bounder::update_of(const Candidate& c, const Specimen& own, const Held& held) const {
  if (c.offload || c.zero == kNoTraffic) return 0;
  const double shards = num_shards(c), of_experts = own.layer.experts / own.layer.elements;
  const double layer = own.update_layer * ((1 - of_experts) / shards + of_experts / num_expert_shards(c));
  double seconds = (held.layers - held.dense) * layer + held.dense * own.update_dense / shards;
  if (held.has_embedding) seconds += own.update_embedding / shards;
  if (held.has_head && !demand_.model.is_tied) seconds += own.update_head / shards;
  return c.buddy > 0 ? 2 * seconds : seconds;
}

// Stages between the ends with equal layers have equal costs.
bool Bounder::is_as_before(const Candidate& c, const std::vector<StageLayers>& layers, int s) const {
  const auto at = static_cast<std::size_t>(s);
  const int more = static_cast<int>(demand_.model.layers % (c.pp * c.chunks)) %
                   c.pp;  // chunks of later stages have one layer less
  return ground_.is_uniform() && s > 1 && s + 1 < c.pp && layers[at] == layers[at - 1] &&
         (c.chunks == 1 || s != more) &&
         (!has_two_kinds_ || dense_of(c, s, layers[at]) == dense_of(c, s - 1, layers[at - 1]));
}

std::vector<Bounder::StageCost> Bounder::stage_costs(const Candidate& c,
                                                     const std::vector<StageLayers>& layers) {
  std::vector<StageCost> stages;
  stages.reserve(layers.size());
  // Between stages of whole nodes all links are equal.
  const NodeGroup& group = ground_.group_of(0);
  const bool has_equal_links = ground_.num_devices() == ground_.cluster().num_devices() &&
                               c.width() % std::max(group.devices_per_node, group.devices_per_domain) == 0;
  for (int s = 0; s < c.pp; ++s) {
    const bool is_alike = is_as_before(c, layers, s);
    const bool has_message = has_equal_links && s > 0;
    stages.push_back(is_alike ? stages.back()
                              : stage_cost(c, s, layers[static_cast<std::size_t>(s)], has_message));
    if (has_message) stages.back().message = stages.front().message;
    // The message stays inside a node or crosses nodes, depending on where the stage ends.
    if (is_alike && !has_equal_links)
      stages.back().message = message(c, s, specimen(kind_of_stage(c, s), c, c.recompute));
  }
  return stages;
}

double Bounder::message(const Candidate& c, int s, const Specimen& own) const {
  const Device here = ground_.map()[VirtualDevice{s * c.width()}],
               there = ground_.map()[VirtualDevice{(s + 1) % c.pp * c.width()}];
  return links_.message(ground_.cluster().link(here, there), own.boundary_bytes);
}

}  // namespace optimus
