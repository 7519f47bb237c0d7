// Implements bound.h: the time bound of a whole pipeline. Stage costs are in bound_stage.cpp, memory in
// bound_memory.cpp.
#include "search/bound.h"

#include <algorithm>
#include <cmath>

#include "schedule/order.h"
#include "simulate/pipeline.h"

namespace optimus {
namespace {

// Tolerance for sums that are not computed in the same order as in the simulator, and for bytes that are
// rounded to integers.
constexpr double kRounding = 1 - 1e-5;

double straggler_loss(const Demand& demand, int num_devices) {
  const int per_node = demand.cluster.profile().groups.front().devices_per_node;
  const double nodes = std::max(1.0, std::ceil(static_cast<double>(num_devices) / per_node));
  return 1 + demand.constants.straggler_loss * std::log2(nodes);
}

}  // namespace

BoundModel::BoundModel(const Demand& demand, const ClusterView& cluster_view)
    : demand_(demand),
      cluster_view_(cluster_view),
      sample_costs_(demand, cluster_view),
      links_(demand.constants),
      has_two_kinds_(has_two_kinds_of_layers(demand.model)) {}

// The part of a stage's gradient reductions that its last backward passes cannot hide. The simulator
// considers two micro-batches, so chunks of both may be processed between the first and the last reduction.
double BoundModel::exposed_reduction(const Candidate& c, const StageCost& stage) const {
  if (!has_copies(demand_, c)) return 0;
  if (!demand_.software.overlaps_reduce) return stage.reduction;
  const double slowdown = demand_.constants.interference * stage.reduction;
  double window = stage.backward + stage.slack + slowdown;
  if (c.schedule == Schedule::zero_bubble) window += 2 * stage.weight;
  if (c.chunks > 1) window = 2 * (window + stage.slack) + stage.forward;
  // Concurrent reductions slow down compute, and the last reduction can overlap with this additional time.
  double remaining = std::max(stage.last_reduction - slowdown, stage.reduction - window);
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  if (c.chunks == 1 && microbatches > 1) {
    // The reductions of the preceding micro-batch delay the reductions of the last micro-batch.
    const double two_windows =
        2 * window + stage.forward + stage.slack + demand_.constants.interference * stage.gather * 2;
    remaining = std::max(remaining, stage.reduction + stage.repeated_reduction - two_windows);
  }
  return std::max(0.0, remaining);
}

// Lower bound on the time at which all stages have all gradients.
double BoundModel::last_gradient_time(const Candidate& c, const std::vector<StageCost>& stages) const {
  const MicrobatchCount count = count_microbatches(demand_.batch, c.microbatch, c.dp);
  const double total = count.total(), last = std::min(1.0, count.last_size);
  const bool is_split = c.schedule == Schedule::zero_bubble;
  double all_forward = stages.front().host_seconds_before,
         // all_forward: forward passes of all stages; remaining_backwards: backward passes of the stages
      // after s
      remaining_backwards = 0;
  for (const StageCost& stage : stages) {
    const bool is_last = &stage == &stages.back();
    all_forward += stage.forward + stage.message * (c.chunks - is_last);
    remaining_backwards += stage.last_backward + (is_last ? 0 : stage.message);
  }
  double fill = stages.front().host_seconds_before, drain = 0, end = 0;
  for (int s = 0; s < c.pp; ++s) {
    const StageCost& stage = stages[static_cast<std::size_t>(s)];
    remaining_backwards -= stage.last_backward + (s + 1 == c.pp ? 0 : stage.message);
    // Number of forward passes before the first backward pass.
    const int warmup_forwards = c.schedule == Schedule::interleaved
                                    ? (c.pp - s - 1) * 2 + (c.chunks - 1) * c.pp + 1
                                : c.schedule == Schedule::gpipe ? count.number
                                                                : std::min(c.pp - s, count.number);
    const double remaining_forwards =
        std::max(0.0, total * stage.forward - warmup_forwards * stage.max_chunk_forward);
    const double backwards = total * (stage.backward + stage.weight) + last * stage.interference;
    double stage_seconds = std::max(stage.host_seconds_before, fill) + total * stage.forward + backwards;
    if (c.schedule != Schedule::gpipe)
      stage_seconds = std::max(stage_seconds, all_forward + (c.chunks == 1 ? remaining_backwards : 0) +
                                                  remaining_forwards + backwards);
    end = std::max(
        {end, stage_seconds + exposed_reduction(c, stage), stage_seconds + (is_split ? 0 : drain * last)});
    fill += stage.first_forward + stage.message;
    drain += stage.last_backward + stage.message;
  }
  return end;
}

// Seconds taken by the updates, of the wait for the step gate, and of the wait for gathers of updated
// weights. The forward passes of the next step hide most of the gathers.
double BoundModel::update_seconds(const Candidate& c, const StageCost& stage, double gate) const {
  const bool gathers = c.zero == 1 || c.zero == 2;
  if (!demand_.software.overlaps_gather) return gate + stage.update + (gathers ? stage.gather : 0);
  const double wait_seconds = gate + (gathers ? std::max(0.0, stage.gather - stage.update) : 0);
  const double interference = demand_.constants.interference;
  return stage.update + std::max(interference * wait_seconds,
                                 wait_seconds - (1 - interference) * (stage.forward + stage.slack));
}

BoundModel::StageWork BoundModel::work_of(const Candidate& c, int s, const StageLayers& layers) {
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  const StageCost cost = stage_cost(c, s, layers);
  const double bytes = memory_terms(c, s, min_in_flight(c, s, microbatches), c.is_fitted)
                           .total_bytes(layers, dense_of(c, s, layers));
  return {cost.forward, cost.backward + cost.weight, bytes <= limit_of(c, s) * (1 - 0.001 * c.memory_margin)};
}

double BoundModel::update_time(const Candidate& c, const std::vector<StageCost>& stages) const {
  const GroupShape world = shape_of_all(c.num_devices(), demand_.cluster);
  const double gate = links_.collective_seconds(Collective::all_reduce, world, 16);
  double max_update = 0;
  for (const StageCost& stage : stages) max_update = std::max(max_update, update_seconds(c, stage, gate));
  return max_update;
}

Bound BoundModel::bound(const Candidate& c, double cutoff_seconds) {
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  const double straggler_factor = straggler_loss(demand_, c.num_devices()) * kRounding;
  const auto seconds = [&](const Candidate& candidate, const std::vector<StageLayers>& layers) {
    const std::vector<StageCost> stages = stage_costs(candidate, layers);
    return (last_gradient_time(candidate, stages) + update_time(candidate, stages)) * straggler_factor;
  };
  Bound bound;
  // The first bound ignores recomputation, which would only add time. It is less expensive than computing the
  // fitted recompute modes and the memory.
  Candidate without_recompute = c;
  without_recompute.is_fitted = false;
  if (c.is_fitted || cutoff_seconds < 1e300)
    bound.seconds = seconds(without_recompute, layers_of(without_recompute));
  if (bound.seconds >= cutoff_seconds) return bound;
  const std::vector<StageLayers> layers = layers_of(c);
  for (int s = 0; s < c.pp; ++s)
    // Among equal stages, the first one has the most micro-batches in flight.
    if (!equals_previous_stage(c, layers, s))
      update_memory_bound(bound, c, s, layers[static_cast<std::size_t>(s)],
                          min_in_flight(c, s, microbatches));
  if (bound.fits() && (c.is_fitted || bound.seconds == 0)) bound.seconds = seconds(c, layers);
  return bound;
}

double BoundModel::bound_any_zero(Candidate c) {
  c.zero = kZeroWithoutTraffic, c.shard_group = 0, c.is_fitted = false;
  const std::vector<StageCost> stages = stage_costs(c, layers_of(c));
  return (last_gradient_time(c, stages) + update_time(c, stages)) * straggler_loss(demand_, c.num_devices()) *
         kRounding;
}

const std::vector<Order>& BoundModel::orders_of(const Candidate& c, int microbatches) {
  for (const KnownOrders& known_orders : known_orders_)
    if (known_orders.schedule == c.schedule && known_orders.pp == c.pp &&
        known_orders.microbatches == microbatches && known_orders.chunks == c.chunks)
      return known_orders.orders;
  constexpr std::size_t kMaxCount = 4;
  if (known_orders_.size() == kMaxCount) known_orders_.erase(known_orders_.begin());
  KnownOrders& known_orders =
      known_orders_.emplace_back(KnownOrders{c.schedule, c.pp, microbatches, c.chunks, {}});
  for (int s = 0; s < c.pp; ++s)
    known_orders.orders.push_back(order_of(c.schedule, {s, c.pp, microbatches, c.chunks}));
  return known_orders.orders;
}

double BoundModel::tighten_bound(const Candidate& c, const Bound& bound) {
  const MicrobatchCount count = count_microbatches(demand_.batch, c.microbatch, c.dp);
  constexpr double kMaxSlots = 30'000;
  if (c.pp == 1 || 2.0 * c.pp * c.chunks * count.number > kMaxSlots) return bound.seconds;
  const std::vector<StageLayers> layers = layers_of(c);
  const std::vector<StageCost> costs = stage_costs(c, layers);
  std::vector<StageTimes> times;
  times.reserve(layers.size());  // `stages` has pointers to its elements, and equal stages share one element
  const std::vector<Order>& orders = orders_of(c, count.number);
  std::vector<PipelineStage> stages;
  for (int s = 0; s < c.pp; ++s) {
    const auto stage_index = static_cast<std::size_t>(s);
    if (!equals_previous_stage(c, layers, s)) {
      StageTimes& stage_times = times.emplace_back();
      for (int chunk = 0, num_layers_before = 0; chunk < c.chunks; ++chunk) {
        const int n = c.chunks == 1 ? layers[stage_index].total()
                                    : split_layers(demand_.model.layers, c.pp * c.chunks, chunk * c.pp + s);
        const ChunkCost cost = chunk_cost(c, s, chunk, layers[stage_index].part(num_layers_before, n));
        num_layers_before += n;
        stage_times.first_forward.push_back({cost.forward, {}}),
            stage_times.forward.push_back({cost.forward, {}});
        stage_times.backward.push_back({cost.backward, {}});
        stage_times.last_backward.push_back({cost.backward + cost.interference, {}});
        stage_times.weight.push_back({cost.weight, {}}), stage_times.last_weight.push_back({cost.weight, {}});
      }
      stage_times.before_first_slot.seconds = costs[stage_index].host_seconds_before;
    }
    const std::size_t previous_index = stage_index == 0 ? layers.size() - 1 : stage_index - 1;
    stages.push_back(
        {&times.back(), &orders[stage_index], costs[stage_index].message, costs[previous_index].message});
  }
  std::vector<double> sizes(static_cast<std::size_t>(count.number), 1);
  sizes.back() = count.last_size;
  const PipelineTimes run = run_pipeline(stages, sizes, demand_.software.messages, false);
  double gate = 0;
  for (std::size_t s = 0; s < layers.size(); ++s)
    gate = std::max(gate, run.stage_ends[s] + exposed_reduction(c, costs[s]));
  return std::max(bound.seconds,
                  (gate + update_time(c, costs)) * straggler_loss(demand_, c.num_devices()) * kRounding);
}

namespace {

// The minimum cost of a layer with its share of the slot's base cost. The base cost does not depend on the
// number of layers and may be negative (a last collective that nothing waits for). A stage has at most as
// many slots as layers.
double min_slot_cost(const SlotCost& cost) { return cost.min_layer() + std::min(0.0, cost.base); }

}  // namespace

// Time bound that considers only stage `s`. `recompute_seconds` is the time of recomputation per micro-batch.
double BoundModel::seconds_of_shape(const Candidate& shape, int s, double recompute_seconds) {
  const MicrobatchCount count = count_microbatches(demand_.batch, shape.microbatch, shape.dp);
  const SampleCost& sample = sample_cost(kind_of_stage(shape, s), shape, shape.recompute);
  const int number = split_layers(demand_.model.layers, shape.pp, s);
  const auto [min_dense, max_dense] = min_and_max_dense(shape, s);
  const auto slot_seconds = [&](const SlotCost& cost) {
    const int dense = cost.dense < 0 ? max_dense : min_dense;
    return cost.of({number, dense, s == 0, s + 1 == shape.pp});
  };
  const auto single_slot_seconds = [&](const SlotCost& cost) {
    return slot_seconds(cost) + std::min(0.0, cost.base) * (number - 1);
  };
  // The backward pass may have one slot or be split into two slots. The bound uses the faster variant.
  const double forward = single_slot_seconds(sample.forward),
               split_forward = slot_seconds(sample.forward) - sample.hidden_by_weight_slot,
               whole_backward = single_slot_seconds(sample.backward),
               split_backward = slot_seconds(sample.input) + slot_seconds(sample.weight);
  // With a split backward pass, a micro-batch passes through all layers of the preceding stages before it
  // reaches this stage. Otherwise, it passes through at least one layer of each preceding stage, for any
  // number of chunks.
  const int previous_stage = cluster_view_.is_uniform() ? s : 0;
  const double layer = std::max(0.0, sample.forward.base + sample.forward.min_layer() + sample.backward.base +
                                         sample.backward.min_layer());
  const double stage = std::max(
      0.0, sample.forward.base - sample.hidden_by_weight_slot +
               split_layers(demand_.model.layers, shape.pp, shape.pp - 1) * min_slot_cost(sample.forward));
  return std::min(
      previous_stage * layer * std::min(1.0, count.last_size) +
          (forward + whole_backward + recompute_seconds) * count.total(),
      previous_stage * stage + (split_forward + split_backward + recompute_seconds) * count.total());
}

Bound BoundModel::bound_any_schedule(const Candidate& shape, double cutoff_seconds) {
  const MicrobatchCount count = count_microbatches(demand_.batch, shape.microbatch, shape.dp);
  // Number of stages that have one layer more than the other stages.
  const int num_larger_stages = static_cast<int>(demand_.model.layers % shape.pp);
  const double straggler_factor = straggler_loss(demand_, shape.num_devices()) * kRounding;
  std::vector<int>& distinct_stages = distinct_stages_;  // stages that differ from adjacent stages
  distinct_stages.clear();
  double longest = 0;
  for (int s = 0; s < shape.pp; ++s) {
    const bool is_distinct = s == 0 || s == num_larger_stages - 1 || s == num_larger_stages ||
                             s + 1 == shape.pp || (has_two_kinds_ && min_and_max_dense(shape, s).second > 0);
    if (!is_distinct && cluster_view_.is_uniform()) continue;
    const int kind = kind_of_stage(shape, s);
    if (!is_distinct && kind == kind_of_stage(shape, s - 1) && kind == kind_of_stage(shape, s + 1)) continue;
    distinct_stages.push_back(s);
    longest = std::max(longest, seconds_of_shape(shape, s, 0));
  }
  Bound bound;
  bound.seconds = longest * straggler_factor;
  if (bound.seconds >= cutoff_seconds) return bound;
  Candidate most_sharded = max_sharded(demand_, shape);
  if (most_sharded.zero == 3) most_sharded.zero = kZeroWithoutGathers;
  for (const int s : distinct_stages) {
    // The distribution of the two kinds of layers over chunks is not known yet.
    if (min_and_max_dense(shape, s).second > 0) continue;
    const int number = split_layers(demand_.model.layers, shape.pp, s), kind = kind_of_stage(shape, s);
    const StageLayers layers =
        shape.is_fitted ? fitted_layers(most_sharded, s, number) : uniform_layers(shape.recompute, number);
    double recompute_seconds = 0;
    for (const RecomputeMode mode : {RecomputeMode::selective, RecomputeMode::full})
      if (shape.is_fitted && layers.of(mode) > 0) {
        const SampleCost &sample = sample_cost(kind, shape, shape.recompute),
                         &recomputed = sample_cost(kind, shape, mode);
        recompute_seconds += layers.of(mode) * std::min(recomputed.backward.layer - sample.backward.layer,
                                                        recomputed.input.layer - sample.input.layer);
      }
    if (recompute_seconds > 0) longest = std::max(longest, seconds_of_shape(shape, s, recompute_seconds));
    update_memory_bound(bound, most_sharded, s, layers, std::min(shape.pp - s, count.number));
  }
  bound.seconds = longest * straggler_factor;
  return bound;
}

double BoundModel::bound_any_shape(const Candidate& c) {
  // Assumes that all devices compute only layers, at the speed of the fastest kind. Using fewer devices takes
  // longer, and smaller straggler losses never compensate for that.
  double min_layer_seconds = 1e300, min_dense_seconds = 1e300, min_price = 1e300;
  for (int kind = 0; kind < std::ssize(cluster_view_.kinds()); ++kind) {
    Candidate split = c;
    split.recompute = RecomputeMode::none;
    const SampleCost& sample = sample_costs_.of(kind, split, false);
    const auto seconds_of_layer = [&](bool is_dense) {
      const auto layer = [&](const SlotCost& cost) { return cost.layer + (is_dense ? cost.dense : 0); };
      const auto slot = [&](const SlotCost& cost) { return layer(cost) + std::min(0.0, cost.base); };
      return std::min(
          slot(sample.forward) + slot(sample.backward),
          slot(sample.forward) - sample.hidden_by_weight_slot + layer(sample.input) + layer(sample.weight));
    };
    min_layer_seconds = std::min(min_layer_seconds, seconds_of_layer(false));
    min_dense_seconds = std::min(min_dense_seconds, seconds_of_layer(true));
    if (demand_.goal == Goal::throughput) continue;
    const DeviceType& type = cluster_view_.type_of(kind);
    min_price = std::min(min_price, demand_.goal == Goal::energy
                                        ? demand_.watts.value_or(type.watts)
                                        : demand_.price.value_or(type.price_per_hour.value_or(0)) / 3600);
  }
  const auto layers = static_cast<int>(demand_.model.layers), dense = num_dense(demand_.model, 0, layers);
  const double device_seconds = static_cast<double>(demand_.batch) / c.microbatch *
                                ((layers - dense) * min_layer_seconds + dense * min_dense_seconds) * c.tp *
                                c.cp * kRounding;
  if (demand_.goal != Goal::throughput) return device_seconds * min_price;
  return device_seconds / cluster_view_.num_devices() * straggler_loss(demand_, cluster_view_.num_devices());
}

}  // namespace optimus
