// See bound.h.
#include "search/bound.h"

#include <algorithm>
#include <cmath>

#include "plan/layouts.h"
#include "schedule/order.h"

namespace optimus {
namespace {

// Rounding of sums in another order than the simulator's.
constexpr double kRounding = 1 - 1e-9;

// Micro-batches whose activations a stage keeps, at least; chunks are counted as parts of one.
double least_in_flight(const Candidate& c, int stage, int microbatches) {
  const StagePosition at{stage, c.pp, microbatches, c.chunks};
  if (c.schedule == Schedule::interleaved && microbatches % c.pp != 0)
    return std::min(c.pp - stage, microbatches);  // a short last round keeps less than the formula
  return static_cast<double>(most_kept(c.schedule, at)) / c.chunks;
}

double straggling(const Demand& demand, int num_devices) {
  const int per_node = demand.cluster.profile().groups.front().devices_per_node;
  const double nodes = std::max(1.0, std::ceil(static_cast<double>(num_devices) / per_node));
  return 1 + demand.constants.straggling * std::log2(nodes);
}

}  // namespace

Candidate most_sharded(const Demand& demand, Candidate c) {
  const Constraints& constraints = demand.constraints;
  c.zero = c.dp * c.cp == 1
               ? 0
               : std::min(constraints.no_zero3 ? 2 : 3, constraints.zero ? constraints.zero->most : 3);
  c.shard_group = 0, c.offload = constraints.offload;
  return c;
}

Bytes memory_limit(const Demand& demand, Bytes has) {
  return demand.constraints.max_memory ? std::min(*demand.constraints.max_memory, has) : has;
}

int num_communicators(const Candidate& c) { return (c.tp > 1) + (c.dp > 1) + (c.cp > 1) + (c.pp > 1); }

double process_bytes(const Demand& demand, const DeviceType& type, double live, double moving,
                     int communicators) {
  const Constants& constants = demand.constants;
  const double reserved = live + moving * constants.reserve;
  if (architecture_of(type) == Architecture::other && starts_with(type.name, "cpu")) return reserved;
  return reserved + constants.context_bytes + communicators * constants.group_bytes;
}

Bounder::Bounder(const Demand& demand, const Ground& ground)
    : demand_(demand), ground_(ground), probes_(demand, ground), links_(demand.constants) {}

const std::vector<int>& Bounder::kinds_of_stages(const Candidate& c) {
  std::vector<int>& kinds = kinds_[{c.width(), c.pp}];
  if (kinds.empty())
    for (int s = 0; s < c.pp; ++s) kinds.push_back(ground_.slowest(s * c.width(), (s + 1) * c.width()));
  return kinds;
}

namespace {

int shards_of(const Candidate& c) {
  return c.zero == 0 ? 1 : c.shard_group > 0 ? c.shard_group : c.dp * c.cp;
}

}  // namespace

const Bounder::Traffic& Bounder::traffic(int kind, const Candidate& c, const Probe& probe) {
  const int data = c.dp * c.cp, shards = shards_of(c);
  const auto [found, is_new] = traffic_.try_emplace({kind, c.tp, data, shards});
  Traffic& t = found->second;
  if (!is_new) return t;
  const GroupShape shard_group = ground_.spread(kind, shards, c.tp),
                   replica_group = ground_.spread(kind, data / shards, c.tp * shards);
  const Precision accumulators = demand_.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  const int gradient = state_bytes(demand_.precision, accumulators, StateKind::gradients);
  const bool is_8_bit = demand_.software.gathers_in_fp8 && format_of(demand_.precision).is_narrow();
  const double weight = bytes_of(demand_.precision) * (is_8_bit ? 0.5 : 1);
  const auto reduce = [&](double elements) {
    double seconds = 0;
    if (shards > 1)
      seconds += links_.collective(Collective::reduce_scatter, shard_group, elements * gradient);
    if (data > shards)
      seconds += links_.collective(Collective::all_reduce, replica_group, elements * gradient / shards);
    return seconds;
  };
  const auto gather = [&](double elements) {
    return shards > 1 ? links_.collective(Collective::gather, shard_group, elements * weight) : 0;
  };
  t.reduce_layer = reduce(probe.layer.elements), t.gather_layer = gather(probe.layer.elements);
  if (demand_.model.is_tied) return t;  // a tied embedding is summed in another way: left out
  t.reduce_embedding = reduce(probe.embedding.elements), t.reduce_head = reduce(probe.head.elements);
  t.gather_embedding = gather(probe.embedding.elements), t.gather_head = gather(probe.head.elements);
  return t;
}

// One stage's figures. A chunk's are those of its slots.
struct Bounder::StageCost {
  double forward = 0, backward = 0,
         weight = 0;                            // of a micro-batch, all chunks; weight: where it is split off
  double first_forward = 0, last_backward = 0;  // of the chunk that a micro-batch meets first
  double longest_forward = 0;                   // of a chunk
  double before = 0;                            // host
  double message = 0;                           // to the next stage
  double reduced = 0, gathered = 0, update = 0;  // of all its blocks
  double last_reduced = 0;                       // of the block whose gradient comes last
};

namespace {

constexpr RecomputeMode kModes[] = {RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full};

Candidate with_mode(Candidate c, RecomputeMode mode) {
  c.recompute = mode, c.is_fitted = false;
  return c;
}

}  // namespace

Bounder::StageCost Bounder::stage_cost(const Candidate& c, int s, const StageLayers& layers) {
  const int kind = kinds_of_stages(c)[static_cast<std::size_t>(s)];
  const Probe& probe = probes_.of(kind, c);
  const Traffic& t = traffic(kind, c, probe);
  const Constants& constants = demand_.constants;
  const bool is_first = s == 0, is_last = s + 1 == c.pp, is_split = c.schedule == Schedule::zero_bubble;
  const bool gathers = c.zero == 3 && shards_of(c) > 1;
  StageCost stage;
  int used = 0;
  for (int chunk = 0; chunk < c.chunks; ++chunk) {
    const int n =
        c.chunks == 1 ? layers.total() : dealt(demand_.model.layers, c.pp * c.chunks, chunk * c.pp + s);
    const bool embeds = is_first && chunk == 0, heads = is_last && chunk + 1 == c.chunks;
    double forward = probe.forward.of(n, embeds, heads);
    double backward = (is_split ? probe.input : probe.backward).of(n, embeds, heads);
    if (c.is_fitted) {
      const StageLayers here = layers.part(used, n);
      for (const RecomputeMode mode : kModes)
        if (const int count = mode == c.recompute ? 0 : here.of(mode); count > 0) {
          const Probe& other = probes_.of(kind, with_mode(c, mode));
          backward += is_split ? count * (other.input.layer - probe.input.layer)
                               : count * (other.backward.layer - probe.backward.layer);
        }
    }
    used += n;
    // Gathers run at most two blocks ahead, and slow compute down beside them.
    for (double* slot : {&forward, &backward}) {
      if (!gathers) break;
      const double all = n * t.gather_layer, least = std::max(0, n - 2) * t.gather_layer;
      if (demand_.software.overlaps_gather)
        *slot = std::max(*slot, least) + std::min(all * constants.interference, 0.1 * *slot);
      else
        *slot += all;
    }
    if (chunk == 0) stage.first_forward = forward, stage.last_backward = backward;
    stage.longest_forward = std::max(stage.longest_forward, forward);
    stage.forward += forward, stage.backward += backward;
    if (is_split) stage.weight += probe.weight.of(n, embeds, heads);
  }
  const auto sum = [&](double layer, double embedding, double head) {
    return layers.total() * layer + (is_first ? embedding : 0) + (is_last ? head : 0);
  };
  stage.reduced = sum(t.reduce_layer, t.reduce_embedding, t.reduce_head);
  stage.gathered = sum(t.gather_layer, t.gather_embedding, t.gather_head);
  stage.last_reduced = is_first ? t.reduce_embedding : t.reduce_layer;
  stage.update =
      sum(probe.update_layer, probe.update_embedding, demand_.model.is_tied ? 0 : probe.update_head);
  stage.update = c.offload ? 0 : stage.update / shards_of(c);
  stage.before = is_first || is_last ? probe.before : 0;
  if (!is_last) stage.message = message(c, s, probe);
  return stage;
}

double Bounder::message(const Candidate& c, int s, const Probe& probe) const {
  const Device here = ground_.map()[VirtualDevice{s * c.width()}],
               there = ground_.map()[VirtualDevice{(s + 1) * c.width()}];
  return links_.message(ground_.cluster().link(here, there), probe.boundary_bytes);
}

// When all stages have their gradients.
double Bounder::end_of(const Candidate& c, const std::vector<StageCost>& stages) const {
  const MicrobatchCount count = count_microbatches(demand_.batch, c.microbatch, c.dp);
  const double total = count.total(), last = std::min(1.0, count.last_size);
  const bool is_split = c.schedule == Schedule::zero_bubble;
  double all_forward = 0,
         behind = 0;  // one micro-batch through all stages and chunks; backwards of the stages behind s
  for (const StageCost& stage : stages) {
    all_forward += stage.forward + stage.message * c.chunks;
    behind += stage.last_backward + stage.message;
  }
  double fill = stages.front().before, drain = 0, end = 0;
  all_forward += fill;
  for (int s = 0; s < c.pp; ++s) {
    const StageCost& stage = stages[static_cast<std::size_t>(s)];
    behind -= stage.last_backward + stage.message;
    // The forwards before the first backward; what is left of them waits for it.
    const int ahead = c.schedule == Schedule::interleaved ? (c.pp - s - 1) * 2 + (c.chunks - 1) * c.pp + 1
                      : c.schedule == Schedule::gpipe     ? count.number
                                                          : std::min(c.pp - s, count.number);
    const double forwards_left = std::max(0.0, total * stage.forward - ahead * stage.longest_forward);
    const double backwards = total * (stage.backward + stage.weight);
    double own = std::max(stage.before, fill) + total * stage.forward + backwards;
    if (c.schedule != Schedule::gpipe)
      own = std::max(own, all_forward + (c.chunks == 1 ? behind : 0) + forwards_left + backwards);
    // Reductions that this stage's last backward does not hide; or what the stages before still have to do.
    double unhidden = 0;
    if (c.dp * c.cp > 1) {
      unhidden = stage.last_reduced;
      if (!demand_.software.overlaps_reduce)
        unhidden = stage.reduced;
      else if (c.chunks == 1 && !is_split)
        unhidden = std::max(unhidden, stage.reduced - 1.6 * stage.backward);
    }
    end = std::max({end, own + unhidden, own + (is_split ? 0 : drain * last)});
    fill += stage.first_forward + stage.message;
    drain += stage.last_backward + stage.message;
  }
  return end;
}

double Bounder::update_seconds(const Candidate& c, const StageCost& stage) const {
  if ((c.zero != 1 && c.zero != 2) || shards_of(c) == 1) return stage.update;
  const double left = std::max(0.0, stage.gathered - stage.update);
  if (!demand_.software.overlaps_gather) return stage.update + stage.gathered;
  const double kept = demand_.constants.interference;  // of what the next forwards hide
  return stage.update + std::max(kept * left, left - (1 - kept) * 1.6 * stage.forward);
}

double Bounder::limit_of(const Candidate& c, int s) const {
  const Bytes has = ground_.least_memory(s * c.width(), (s + 1) * c.width());
  return static_cast<double>(memory_limit(demand_, has).value);
}

double Bounder::stage_bytes(const Candidate& c, int s, const StageLayers& layers, double in_flight) {
  const int kind = kinds_of_stages(c)[static_cast<std::size_t>(s)];
  const Probe& probe = probes_.of(kind, c);
  const double shards = shards_of(c);
  const bool is_ours = demand_.software.runs_programs, is_theirs_whole = c.zero == 3 && !is_ours;
  double state = 0, kept = 0, brief = 0;
  const auto add = [&](const BlockBytes& block, double times) {
    state += times * block.weights / (c.zero >= 3 ? shards : 1) * (is_theirs_whole ? 2 : 1);
    state += times * block.gradients / (c.zero >= 2 ? shards : 1);
    if (!c.offload)
      state += times * block.optimizer / (c.zero >= 1 ? shards : 1) * (is_theirs_whole ? 2.0 / 3 : 1);
    kept += times * block.kept;
    brief = std::max(brief, block.brief);
  };
  for (const RecomputeMode mode : kModes)
    if (const int count = layers.of(mode); count > 0) add(probes_.of(kind, with_mode(c, mode)).layer, count);
  if (s == 0) add(probe.embedding, 1);
  // Both ends in one stage share a tied embedding.
  if (s + 1 == c.pp && !(c.pp == 1 && demand_.model.is_tied)) add(probe.head, 1);
  if (c.zero == 3)
    brief += probe.layer.elements * (2 * 2 + 4) * (is_ours ? 1 : demand_.constants.live_factor);
  const double moving = kept * in_flight + brief;
  return process_bytes(demand_, ground_.type_of(kind), state + moving, moving, num_communicators(c));
}

void Bounder::see_memory(Bound& bound, const Candidate& c, int s, const StageLayers& layers,
                         double in_flight) {
  const double bytes = stage_bytes(c, s, layers, in_flight), limit = limit_of(c, s);
  if (bound.limit == 0 || bytes - limit > bound.bytes - bound.limit) bound.bytes = bytes, bound.limit = limit;
}

// Every number of fully recomputed layers, with as many selective ones as are then needed: the quickest that fits.
StageLayers Bounder::fitted(const Candidate& c, int s, int layers) {
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  const double in_flight = least_in_flight(c, s, microbatches);
  // What the bound leaves out (padding of shards, alignment) is less than this.
  const double limit = limit_of(c, s) * 0.998;
  const int kind = kinds_of_stages(c)[static_cast<std::size_t>(s)];
  const auto probe = [&](RecomputeMode mode) -> const Probe& { return probes_.of(kind, with_mode(c, mode)); };
  const double none = probe(RecomputeMode::none).backward.layer,
               selective = probe(RecomputeMode::selective).backward.layer - none,
               full = probe(RecomputeMode::full).backward.layer - none;
  const double saved =
      (probe(RecomputeMode::none).layer.kept - probe(RecomputeMode::selective).layer.kept) * in_flight;
  StageLayers best = layers_in(RecomputeMode::full, layers);
  double least = layers * full;
  for (int f = 0; f < layers; ++f) {
    if (f * full >= least) break;
    StageLayers trial{f, 0, layers - f};
    const double over = stage_bytes(c, s, trial, in_flight) - limit;
    if (over > 0) {
      if (saved <= 0 || over / saved > layers - f) continue;
      trial.selective = std::min(layers - f, static_cast<int>(std::ceil(over / saved)));
      trial.none = layers - f - trial.selective;
      if (stage_bytes(c, s, trial, in_flight) > limit) continue;
    }
    if (const double seconds = f * full + trial.selective * selective; seconds < least)
      least = seconds, best = trial;
  }
  return best;
}

std::vector<StageLayers> Bounder::layers_of(const Candidate& c) {
  std::vector<StageLayers> layers;
  for (int s = 0; s < c.pp; ++s) {
    const int count = dealt(demand_.model.layers, c.pp, s);  // the same however many chunks there are
    layers.push_back(c.is_fitted ? fitted(c, s, count) : layers_in(c.recompute, count));
  }
  return layers;
}

Bounder::StageWork Bounder::work_of(const Candidate& c, int s, const StageLayers& layers) {
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  const StageCost cost = stage_cost(c, s, layers);
  const double bytes = stage_bytes(c, s, layers, least_in_flight(c, s, microbatches));
  return {cost.forward, cost.backward + cost.weight, bytes <= limit_of(c, s) * 0.998};
}

Bound Bounder::of(const Candidate& c) {
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  const std::vector<StageLayers> layers = layers_of(c);
  Bound bound;
  std::vector<StageCost> stages;
  double after = 0;
  for (int s = 0; s < c.pp; ++s) {
    const auto at = static_cast<std::size_t>(s);
    // Stages between the ends with the same layers are alike.
    const bool is_alike = ground_.is_uniform() && s > 1 && s + 1 < c.pp && layers[at] == layers[at - 1] &&
                          (c.chunks == 1 || demand_.model.layers % (c.pp * c.chunks) == 0);
    stages.push_back(is_alike ? stages.back() : stage_cost(c, s, layers[at]));
    after = std::max(after, update_seconds(c, stages.back()));
    if (!is_alike) see_memory(bound, c, s, layers[at], least_in_flight(c, s, microbatches));
  }
  const GroupShape all = shape_of_all(c.num_devices(), demand_.cluster);
  const double vote = links_.collective(Collective::all_reduce, all, 16);
  bound.seconds = (end_of(c, stages) + vote + after) * straggling(demand_, c.num_devices()) * kRounding;
  return bound;
}

Bound Bounder::of_any_schedule(const Candidate& shape) {
  const MicrobatchCount count = count_microbatches(demand_.batch, shape.microbatch, shape.dp);
  const Candidate least = most_sharded(demand_, shape);
  const std::vector<int>& kinds = kinds_of_stages(shape);
  const int more = static_cast<int>(demand_.model.layers % shape.pp);  // stages that have a layer more
  Bound bound;
  double longest = 0;
  for (int s = 0; s < shape.pp; ++s) {
    const auto at = static_cast<std::size_t>(s);
    const bool is_told = s == 0 || s == more - 1 || s == more || s + 1 == shape.pp ||
                         kinds[at] != kinds[at - 1] || kinds[at] != kinds[at + 1];
    if (!is_told) continue;  // as its neighbours
    const Probe& probe = probes_.of(kinds[static_cast<std::size_t>(s)], shape);
    const int count_here = dealt(demand_.model.layers, shape.pp, s);
    const StageLayers layers =
        shape.is_fitted ? fitted(least, s, count_here) : layers_in(shape.recompute, count_here);
    double work = probe.forward.of(count_here, s == 0, s + 1 == shape.pp) +
                  probe.backward.of(count_here, s == 0, s + 1 == shape.pp);
    for (const RecomputeMode mode : {RecomputeMode::selective, RecomputeMode::full})
      if (shape.is_fitted && layers.of(mode) > 0)
        work += layers.of(mode) *
                (probes_.of(kinds[static_cast<std::size_t>(s)], with_mode(shape, mode)).backward.layer -
                 probe.backward.layer);
    // However finely stages are cut, a layer of each stage before comes first.
    const double fill = ground_.is_uniform() ? s * (probe.forward.base + probe.forward.layer) : 0;
    longest = std::max(longest, fill + work * count.total());
    see_memory(bound, least, s, layers, std::min(shape.pp - s, count.number));
  }
  bound.seconds = longest * straggling(demand_, shape.num_devices()) * kRounding;
  return bound;
}

}  // namespace optimus
