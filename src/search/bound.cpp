// See bound.h.
#include "search/bound.h"

#include <algorithm>
#include <cmath>

#include "plan/layouts.h"
#include "schedule/order.h"
#include "simulate/pipeline.h"

namespace optimus {
namespace {

// Rounding of sums in another order than the simulator's, and of bytes to whole ones.
constexpr double kRounding = 1 - 1e-5;

double straggling(const Demand& demand, int num_devices) {
  const int per_node = demand.cluster.profile().groups.front().devices_per_node;
  const double nodes = std::max(1.0, std::ceil(static_cast<double>(num_devices) / per_node));
  return 1 + demand.constants.straggling * std::log2(nodes);
}

}  // namespace

Bounder::Bounder(const Demand& demand, const Ground& ground)
    : demand_(demand),
      ground_(ground),
      specimens_(demand, ground),
      links_(demand.constants),
      has_two_kinds_(has_two_kinds_of_layers(demand.model)) {}

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
  // Groups of one take no time.
  const auto each = [&](Collective collective, const GroupShape& group, const GroupShape& of_experts,
                        double bytes, double expert_bytes) {
    const auto seconds = [&](const BlockBytes& block) {
      return links_.collective(collective, group, (block.elements - block.experts) * bytes) +
             links_.collective(collective, of_experts, block.experts * expert_bytes);
    };
    // A tied embedding is summed in another way: left out.
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

// In the order of the blocks, chunk by chunk; stages dealt otherwise than evenly are taken to begin where even ones do.
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

// One chunk's slots.
struct Bounder::ChunkCost {
  double forward = 0, backward = 0, weight = 0;  // weight: where it is split off
  double interference = 0;                       // of reductions with the last backward
};

// One stage's figures.
struct Bounder::StageCost {
  double forward = 0, backward = 0, weight = 0;  // of a micro-batch, all chunks
  double first_forward = 0, last_backward = 0;   // of the chunk that a micro-batch meets first
  double longest_forward = 0;                    // of a chunk
  double interference = 0;
  double before = 0;                             // host
  double message = 0;                            // to the next stage
  double reduced = 0, gathered = 0, update = 0;  // of all its blocks
  double scattered = 0;                          // of that, after every micro-batch
  double last_reduced = 0;                       // of the block whose gradient comes last
  double slack = 0;                              // slots may take longer than here, all chunks together
};

// layers: of this chunk.
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
  // Communication beside compute slows it down, by half at most.
  double beside_forward = 0, beside_backward = 0;
  if (c.zero == 3) {
    // Gathers run at most two blocks ahead.
    const double all = t.gather.of(held),
                 least = std::max(0.0, t.gather.of({n, held.dense}) - 2 * t.gather.most_layer());
    if (software.overlaps_gather) {
      cost.forward = std::max(cost.forward, least), cost.backward = std::max(cost.backward, least);
      beside_forward = all, beside_backward = is_split ? 0 : all;
    } else {
      cost.forward += all, cost.backward += all;
    }
  }
  const bool reduces = software.overlaps_reduce && !is_split;
  if (c.zero >= 2 && reduces) beside_backward += t.shard.of(held);
  const double interference = demand_.constants.interference, most = 0.5 * own.backward_compute.of(held);
  // What slows a slot down at its end hides what the next begins with: a forward's, tokens on their way to experts or a gather; a
  // backward's, what is left of a gather.
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

// has_message: somebody else sets it.
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
    // Most chunks are as the one before.
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

// Each block's optimizer on its shard.
double Bounder::update_of(const Candidate& c, const Specimen& own, const Held& held) const {
  if (c.offload || c.zero == kNoTraffic) return 0;
  const double shards = num_shards(c), of_experts = own.layer.experts / own.layer.elements;
  const double layer = own.update_layer * ((1 - of_experts) / shards + of_experts / num_expert_shards(c));
  double seconds = (held.layers - held.dense) * layer + held.dense * own.update_dense / shards;
  if (held.has_embedding) seconds += own.update_embedding / shards;
  if (held.has_head && !demand_.model.is_tied) seconds += own.update_head / shards;
  return seconds;
}

// Stages between the ends with the same layers are alike.
bool Bounder::is_as_before(const Candidate& c, const std::vector<StageLayers>& layers, int s) const {
  const auto at = static_cast<std::size_t>(s);
  const int more = static_cast<int>(demand_.model.layers % (c.pp * c.chunks)) %
                   c.pp;  // from there on chunks are dealt otherwise
  return ground_.is_uniform() && s > 1 && s + 1 < c.pp && layers[at] == layers[at - 1] &&
         (c.chunks == 1 || s != more) &&
         (!has_two_kinds_ || dense_of(c, s, layers[at]) == dense_of(c, s - 1, layers[at - 1]));
}

std::vector<Bounder::StageCost> Bounder::stage_costs(const Candidate& c,
                                                     const std::vector<StageLayers>& layers) {
  std::vector<StageCost> stages;
  stages.reserve(layers.size());
  // Stages of whole nodes are all as far from each other.
  const NodeGroup& group = ground_.group_of(0);
  const bool has_equal_links = ground_.num_devices() == ground_.cluster().num_devices() &&
                               c.width() % std::max(group.devices_per_node, group.devices_per_domain) == 0;
  for (int s = 0; s < c.pp; ++s) {
    const bool is_alike = is_as_before(c, layers, s);
    const bool has_message = has_equal_links && s > 0;
    stages.push_back(is_alike ? stages.back()
                              : stage_cost(c, s, layers[static_cast<std::size_t>(s)], has_message));
    if (has_message) stages.back().message = stages.front().message;
    // Inside a node or between nodes, by where the stage ends.
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

// Reductions that the stage's last backwards do not hide: no more time than these take is there for them. The simulator looks at
// two micro-batches: chunks of both come between the first reduction and the last.
double Bounder::unhidden(const Candidate& c, const StageCost& stage) const {
  if (!has_copies(demand_, c)) return 0;
  if (!demand_.software.overlaps_reduce) return stage.reduced;
  const double slowed = demand_.constants.interference * stage.reduced;
  double window = stage.backward + stage.slack + slowed;
  if (c.schedule == Schedule::zero_bubble) window += 2 * stage.weight;
  if (c.chunks > 1) window = 2 * (window + stage.slack) + stage.forward;
  // Compute that is slowed down leaves the last reduction that much time.
  double left = std::max(stage.last_reduced - slowed, stage.reduced - window);
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  if (c.chunks == 1 && microbatches > 1) {
    // Those of the micro-batch before are in the way.
    const double both =
        2 * window + stage.forward + stage.slack + demand_.constants.interference * stage.gathered * 2;
    left = std::max(left, stage.reduced + stage.scattered - both);
  }
  return std::max(0.0, left);
}

// When all stages have their gradients.
double Bounder::end_of(const Candidate& c, const std::vector<StageCost>& stages) const {
  const MicrobatchCount count = count_microbatches(demand_.batch, c.microbatch, c.dp);
  const double total = count.total(), last = std::min(1.0, count.last_size);
  const bool is_split = c.schedule == Schedule::zero_bubble;
  double all_forward = stages.front().before,
         behind = 0;  // one micro-batch through all; backwards of the stages behind s
  for (const StageCost& stage : stages) {
    const bool is_last = &stage == &stages.back();
    all_forward += stage.forward + stage.message * (c.chunks - is_last);
    behind += stage.last_backward + (is_last ? 0 : stage.message);
  }
  double fill = stages.front().before, drain = 0, end = 0;
  for (int s = 0; s < c.pp; ++s) {
    const StageCost& stage = stages[static_cast<std::size_t>(s)];
    behind -= stage.last_backward + (s + 1 == c.pp ? 0 : stage.message);
    // The forwards before the first backward; what is left of them waits for it.
    const int ahead = c.schedule == Schedule::interleaved ? (c.pp - s - 1) * 2 + (c.chunks - 1) * c.pp + 1
                      : c.schedule == Schedule::gpipe     ? count.number
                                                          : std::min(c.pp - s, count.number);
    const double forwards_left = std::max(0.0, total * stage.forward - ahead * stage.longest_forward);
    const double backwards = total * (stage.backward + stage.weight) + last * stage.interference;
    double own = std::max(stage.before, fill) + total * stage.forward + backwards;
    if (c.schedule != Schedule::gpipe)
      own = std::max(own, all_forward + (c.chunks == 1 ? behind : 0) + forwards_left + backwards);
    end = std::max({end, own + unhidden(c, stage), own + (is_split ? 0 : drain * last)});
    fill += stage.first_forward + stage.message;
    drain += stage.last_backward + stage.message;
  }
  return end;
}

// Updates, and what is waited for with them: the gate, and gathers of updated weights. The next forwards hide most of that.
double Bounder::update_seconds(const Candidate& c, const StageCost& stage, double gate) const {
  const bool gathers = c.zero == 1 || c.zero == 2;
  if (!demand_.software.overlaps_gather) return gate + stage.update + (gathers ? stage.gathered : 0);
  const double waits = gate + (gathers ? std::max(0.0, stage.gathered - stage.update) : 0);
  const double kept = demand_.constants.interference;
  return stage.update + std::max(kept * waits, waits - (1 - kept) * (stage.forward + stage.slack));
}

Bounder::StageWork Bounder::work_of(const Candidate& c, int s, const StageLayers& layers) {
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  const StageCost cost = stage_cost(c, s, layers);
  const double bytes =
      memory_terms(c, s, least_in_flight(c, s, microbatches), c.is_fitted).of(layers, dense_of(c, s, layers));
  return {cost.forward, cost.backward + cost.weight, bytes <= limit_of(c, s) * (1 - 0.001 * c.spare)};
}

double Bounder::after_gate(const Candidate& c, const std::vector<StageCost>& stages) const {
  const GroupShape all = shape_of_all(c.num_devices(), demand_.cluster);
  const double gate = links_.collective(Collective::all_reduce, all, 16);
  double after = 0;
  for (const StageCost& stage : stages) after = std::max(after, update_seconds(c, stage, gate));
  return after;
}

Bound Bounder::of(const Candidate& c, double enough) {
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  const double stretched = straggling(demand_, c.num_devices()) * kRounding;
  const auto seconds = [&](const Candidate& one, const std::vector<StageLayers>& layers) {
    const std::vector<StageCost> stages = stage_costs(one, layers);
    return (end_of(one, stages) + after_gate(one, stages)) * stretched;
  };
  Bound bound;
  // Computing anything again only takes longer; working out what is, and memory, costs more than this.
  Candidate none = c;
  none.is_fitted = false;
  if (c.is_fitted || enough < 1e300) bound.seconds = seconds(none, layers_of(none));
  if (bound.seconds >= enough) return bound;
  const std::vector<StageLayers> layers = layers_of(c);
  for (int s = 0; s < c.pp; ++s)
    if (!is_as_before(c, layers, s))  // of those that are the first has most under way
      see_memory(bound, c, s, layers[static_cast<std::size_t>(s)], least_in_flight(c, s, microbatches));
  if (bound.fits() && (c.is_fitted || bound.seconds == 0)) bound.seconds = seconds(c, layers);
  return bound;
}

double Bounder::of_any_zero(Candidate c) {
  c.zero = kNoTraffic, c.shard_group = 0, c.is_fitted = false;
  const std::vector<StageCost> stages = stage_costs(c, layers_of(c));
  return (end_of(c, stages) + after_gate(c, stages)) * straggling(demand_, c.num_devices()) * kRounding;
}

const std::vector<Order>& Bounder::orders_of(const Candidate& c, int microbatches) {
  for (const KnownOrders& known : known_orders_)
    if (known.schedule == c.schedule && known.pp == c.pp && known.microbatches == microbatches &&
        known.chunks == c.chunks)
      return known.orders;
  constexpr std::size_t kMost = 4;
  if (known_orders_.size() == kMost) known_orders_.erase(known_orders_.begin());
  KnownOrders& known = known_orders_.emplace_back(KnownOrders{c.schedule, c.pp, microbatches, c.chunks, {}});
  for (int s = 0; s < c.pp; ++s)
    known.orders.push_back(order_of(c.schedule, {s, c.pp, microbatches, c.chunks}));
  return known.orders;
}

double Bounder::tighter(const Candidate& c, const Bound& bound) {
  const MicrobatchCount count = count_microbatches(demand_.batch, c.microbatch, c.dp);
  constexpr double kMostSlots = 30'000;
  if (c.pp == 1 || 2.0 * c.pp * c.chunks * count.number > kMostSlots) return bound.seconds;
  const std::vector<StageLayers> layers = layers_of(c);
  const std::vector<StageCost> costs = stage_costs(c, layers);
  std::vector<StageTimes> times;
  times.reserve(layers.size());  // stages refer to them; those that are alike to one
  const std::vector<Order>& orders = orders_of(c, count.number);
  std::vector<PipelineStage> stages;
  for (int s = 0; s < c.pp; ++s) {
    const auto at = static_cast<std::size_t>(s);
    if (!is_as_before(c, layers, s)) {
      StageTimes& own = times.emplace_back();
      for (int chunk = 0, used = 0; chunk < c.chunks; ++chunk) {
        const int n = c.chunks == 1 ? layers[at].total()
                                    : dealt(demand_.model.layers, c.pp * c.chunks, chunk * c.pp + s);
        const ChunkCost cost = chunk_cost(c, s, chunk, layers[at].part(used, n));
        used += n;
        own.first_forward.push_back({cost.forward, {}}), own.forward.push_back({cost.forward, {}});
        own.backward.push_back({cost.backward, {}});
        own.last_backward.push_back({cost.backward + cost.interference, {}});
        own.weight.push_back({cost.weight, {}}), own.last_weight.push_back({cost.weight, {}});
      }
      own.before.seconds = costs[at].before;
    }
    const std::size_t before = at == 0 ? layers.size() - 1 : at - 1;
    stages.push_back({&times.back(), &orders[at], costs[at].message, costs[before].message});
  }
  std::vector<double> sizes(static_cast<std::size_t>(count.number), 1);
  sizes.back() = count.last_size;
  const PipelineTimes run = run_pipeline(stages, sizes, demand_.software.messages, false);
  double gate = 0;
  for (std::size_t s = 0; s < layers.size(); ++s) gate = std::max(gate, run.ends[s] + unhidden(c, costs[s]));
  return std::max(bound.seconds,
                  (gate + after_gate(c, costs)) * straggling(demand_, c.num_devices()) * kRounding);
}

namespace {

// Slots have a part that does not grow with layers; it may be negative (a last sum that nothing waits for). However finely a
// stage is cut, it has no more slots than layers.
double least_of(const SlotCost& cost) { return cost.least_layer() + std::min(0.0, cost.base); }

}  // namespace

// Of one stage, the last that is `before` others; again: what computing again adds to a micro-batch.
double Bounder::seconds_of_shape(const Candidate& shape, int s, double again) {
  const MicrobatchCount count = count_microbatches(demand_.batch, shape.microbatch, shape.dp);
  const Specimen& own = specimen(kind_of_stage(shape, s), shape, shape.recompute);
  const int number = dealt(demand_.model.layers, shape.pp, s);
  const auto [least_dense, most_dense] = least_and_most_dense(shape, s);
  const auto of = [&](const SlotCost& cost) {
    const int dense = cost.dense < 0 ? most_dense : least_dense;
    return cost.of({number, dense, s == 0, s + 1 == shape.pp});
  };
  const auto in_one = [&](const SlotCost& cost) {
    return of(cost) + std::min(0.0, cost.base) * (number - 1);
  };
  // A backward in one, or split in two: either may be quicker.
  const double forward = in_one(own.forward), split_forward = of(own.forward) - own.hidden_by_weights,
               whole = in_one(own.backward), split = of(own.input) + of(own.weight);
  // Split backwards fill with whole stages; others, however finely stages are cut, with a layer of each stage before.
  const int before = ground_.is_uniform() ? s : 0;
  const double layer = std::max(
      0.0, own.forward.base + own.forward.least_layer() + own.backward.base + own.backward.least_layer());
  const double stage =
      std::max(0.0, own.forward.base - own.hidden_by_weights +
                        dealt(demand_.model.layers, shape.pp, shape.pp - 1) * least_of(own.forward));
  return std::min(before * layer * std::min(1.0, count.last_size) + (forward + whole + again) * count.total(),
                  before * stage + (split_forward + split + again) * count.total());
}

Bound Bounder::of_any_schedule(const Candidate& shape, double enough) {
  const MicrobatchCount count = count_microbatches(demand_.batch, shape.microbatch, shape.dp);
  const int more = static_cast<int>(demand_.model.layers % shape.pp);  // stages that have a layer more
  const double stretched = straggling(demand_, shape.num_devices()) * kRounding;
  std::vector<int>& told = told_;  // stages that are not as their neighbours
  told.clear();
  double longest = 0;
  for (int s = 0; s < shape.pp; ++s) {
    const bool is_told = s == 0 || s == more - 1 || s == more || s + 1 == shape.pp ||
                         (has_two_kinds_ && least_and_most_dense(shape, s).second > 0);
    if (!is_told && ground_.is_uniform()) continue;
    const int kind = kind_of_stage(shape, s);
    if (!is_told && kind == kind_of_stage(shape, s - 1) && kind == kind_of_stage(shape, s + 1)) continue;
    told.push_back(s);
    longest = std::max(longest, seconds_of_shape(shape, s, 0));
  }
  Bound bound;
  bound.seconds = longest * stretched;
  if (bound.seconds >= enough) return bound;
  Candidate least = most_sharded(demand_, shape);
  if (least.zero == 3) least.zero = kNothingGathered;
  for (const int s : told) {
    // How the layers of either kind are dealt is not known yet.
    if (least_and_most_dense(shape, s).second > 0) continue;
    const int number = dealt(demand_.model.layers, shape.pp, s), kind = kind_of_stage(shape, s);
    const StageLayers layers =
        shape.is_fitted ? fitted(least, s, number) : layers_in(shape.recompute, number);
    double again = 0;
    for (const RecomputeMode mode : {RecomputeMode::selective, RecomputeMode::full})
      if (shape.is_fitted && layers.of(mode) > 0) {
        const Specimen &own = specimen(kind, shape, shape.recompute), &other = specimen(kind, shape, mode);
        again += layers.of(mode) *
                 std::min(other.backward.layer - own.backward.layer, other.input.layer - own.input.layer);
      }
    if (again > 0) longest = std::max(longest, seconds_of_shape(shape, s, again));
    see_memory(bound, least, s, layers, std::min(shape.pp - s, count.number));
  }
  bound.seconds = longest * stretched;
  return bound;
}

double Bounder::of_any_shape(const Candidate& c) {
  // All devices busy with layers alone, at the pace of the fastest kind; fewer devices take longer and straggle less, but never
  // that much less.
  double least = 1e300, least_dense = 1e300, cheapest = 1e300;
  for (int kind = 0; kind < std::ssize(ground_.kinds()); ++kind) {
    Candidate split = c;
    split.recompute = RecomputeMode::none;
    const Specimen& own = specimens_.of(kind, split, false);
    const auto seconds_of_layer = [&](bool is_dense) {
      const auto layer = [&](const SlotCost& cost) { return cost.layer + (is_dense ? cost.dense : 0); };
      const auto slot = [&](const SlotCost& cost) { return layer(cost) + std::min(0.0, cost.base); };
      return std::min(slot(own.forward) + slot(own.backward),
                      slot(own.forward) - own.hidden_by_weights + layer(own.input) + layer(own.weight));
    };
    least = std::min(least, seconds_of_layer(false));
    least_dense = std::min(least_dense, seconds_of_layer(true));
    if (demand_.goal == Goal::throughput) continue;
    const DeviceType& type = ground_.type_of(kind);
    cheapest = std::min(cheapest, demand_.goal == Goal::energy
                                      ? demand_.watts.value_or(type.watts)
                                      : demand_.price.value_or(type.price_per_hour.value_or(0)) / 3600);
  }
  const auto layers = static_cast<int>(demand_.model.layers), dense = num_dense(demand_.model, 0, layers);
  const double device_seconds = static_cast<double>(demand_.batch) / c.microbatch *
                                ((layers - dense) * least + dense * least_dense) * c.tp * c.cp * kRounding;
  if (demand_.goal != Goal::throughput) return device_seconds * cheapest;
  return device_seconds / ground_.num_devices() * straggling(demand_, ground_.num_devices());
}

}  // namespace optimus
