// See sample_cost.h.
#include "search/sample_cost.h"

#include <algorithm>
#include <array>
#include <span>

#include "cost/memory_cost.h"
#include "plan/layouts.h"
#include "simulate/lanes.h"

namespace optimus {
namespace {

// The smallest number of devices in a stage with this strategy.
int num_sample_devices(const Candidate& c) { return c.tp * c.cp * replica_multiple(c); }

// The sample model has three layers in four chunks: the embedding, one layer, two layers, and the head. If a
// mixture-of-experts model has two kinds of layers, its sample model has three more chunks after the
// embedding: one dense layer, two dense layers, and one layer of each kind.
enum SampleChunk { embedding_chunk, one_dense, two_dense, one_of_each, one_layer, two_layers, head_chunk };
constexpr int kChunkStarts[] = {0, 1, 1, 1, 1, 2, 4, 5}, kChunkStartsOfTwoKinds[] = {0, 1, 2, 4, 6, 7, 9, 10};
constexpr int kDenseLayers = 4;  // number of dense layers of such a sample model; they come first

// The chunks in the order of their blocks. The three additional chunks are omitted if the model has one kind
// of layers.
std::vector<SampleChunk> chunks_of(const std::vector<int>& chunk_starts) {
  std::vector<SampleChunk> chunks;
  for (const SampleChunk chunk :
       {embedding_chunk, one_dense, two_dense, one_of_each, one_layer, two_layers, head_chunk})
    if (chunk_starts[chunk] < chunk_starts[chunk + 1]) chunks.push_back(chunk);
  return chunks;
}

// The chunks of the sample model as one stage (to time slots) or as several stages (to compute memory).
Plan sample_plan(const Demand& demand, const ModelSpec& sample_model, const std::vector<int>& chunk_starts,
                 const Candidate& c, bool as_stages) {
  Plan plan;
  plan.num_blocks = num_blocks(sample_model);
  plan.sequence_length = demand.sequence_length;
  plan.schedule = as_stages ? Schedule::gpipe : Schedule::interleaved;
  plan.precision = demand.precision;
  plan.accumulators = demand.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  Candidate without_sharding = c;
  without_sharding.zero = without_sharding.shard_group = 0, without_sharding.offload = false;
  Pipeline pipeline;
  plan.batch = static_cast<std::int64_t>(c.microbatch) * replica_multiple(c);
  pipeline.microbatches.assign(1, static_cast<int>(plan.batch));
  std::vector<int> devices;
  for (int i = 0; i < num_sample_devices(c); ++i) devices.push_back(i);
  for (const SampleChunk chunk : chunks_of(chunk_starts)) {
    const Chunk blocks{{{chunk_starts[chunk], chunk_starts[chunk + 1] - chunk_starts[chunk],
                         strategy_of(without_sharding)}}};
    if (as_stages || chunk == embedding_chunk) pipeline.stages.push_back({devices, {}});
    pipeline.stages.back().chunks.push_back(blocks);
  }
  plan.pipelines.push_back(std::move(pipeline));
  return plan;
}

DeviceMap contiguous_map(Device first, int count, int num_devices) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i)
    devices.push_back({std::min(first.value, std::max(0, num_devices - count)) + i});
  return DeviceMap(std::move(devices));
}

// Determines the cost per block from the times of the slots. `hidden` is the part of a slot that the end of
// the preceding slot may hide. `slot` is the fixed cost of every slot.
SlotCost slot_cost(const std::vector<SampleChunk>& chunks, const std::vector<SlotTime>& slots, double hidden,
                   double slot) {
  SlotCost cost;
  std::array<double, head_chunk + 1> seconds{};
  for (std::size_t i = 0; i < chunks.size(); ++i) seconds[chunks[i]] = slots[i].seconds;
  cost.layer = seconds[two_layers] - seconds[one_layer];
  if (seconds[one_of_each] > 0) {
    // The smaller of two costs: that of a layer after a layer of the same kind, and after a layer of the
    // other kind.
    cost.layer = std::min(cost.layer, seconds[one_of_each] - seconds[one_dense]);
    const double dense =
        std::min(seconds[two_dense] - seconds[one_dense], seconds[one_of_each] - seconds[one_layer]);
    cost.dense = dense - cost.layer;
    cost.base = std::min(seconds[one_layer] - cost.layer, seconds[one_dense] - dense) - hidden;
  } else {
    cost.base = seconds[one_layer] - cost.layer - hidden;
  }
  cost.embedding = seconds[embedding_chunk] - slot;
  cost.head = seconds[head_chunk] - slot - hidden;
  return cost;
}

BlockBytes bytes_of_stage(const Setup& setup, int stage, const Constants& constants) {
  const StageMemory memory = stage_memory(setup, 0, stage, constants);
  const auto number = [](Bytes bytes) { return static_cast<double>(bytes.value); };
  BlockBytes bytes{number(memory.weights),     number(memory.gradients), number(memory.optimizer),
                   number(memory.activations), number(memory.buffers),   0};
  bytes.elements =
      bytes.weights / state_bytes(setup.plan.precision, setup.plan.accumulators, StateKind::weights);
  return bytes;
}

// Sums over the instructions of one block in the first micro-batch, in seconds.
struct BlockSeconds {
  double forward = 0, input = 0, weight = 0, recompute = 0;  // compute
  double backward_collectives = 0, forward_collectives = 0;  // collectives among tensor-parallel ranks
  double update = 0;
};
BlockSeconds seconds_of_block(const Program& program, const std::vector<double>& seconds, int block) {
  BlockSeconds sum;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const Instruction& at = program.instructions[i];
    if (at.block != block) continue;
    if (at.op == Op::optimizer) sum.update += seconds[i];
    if (at.microbatch != 0) continue;
    if (at.op == Op::forward) sum.forward += seconds[i];
    if (at.op == Op::backward_input) sum.input += seconds[i];
    if (at.op == Op::backward_weight) sum.weight += seconds[i];
    if (at.op == Op::recompute) sum.recompute += seconds[i];
    if (at.lane == Lane::tensor && at.is_backward) sum.backward_collectives += seconds[i];
    if (at.lane == Lane::tensor && !at.is_backward && at.op != Op::ring_exchange)
      sum.forward_collectives += seconds[i];
  }
  return sum;
}

// A slot may start with a gather while the preceding slot still computes without communication (weight
// gradients, or experts that are not distributed). `forward` is the part of a forward pass's gather that may
// be hidden. `backward` is how much more of a backward pass's gather may be hidden than in the sample.
struct HiddenGathers {
  double forward = 0, backward = 0;
};

// How long one block computes after its last collective, at the end of its forward pass and of its backward
// pass.
struct Tails {
  double forward = 0, backward = 0;
};
Tails tails_of(const Program& program, const std::vector<double>& seconds, int block, bool has_collective) {
  Tails tails;
  double weight = 0, sum = 0;
  int slot = -1;  // slot of the block's forward pass
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const Instruction& at = program.instructions[i];
    if (at.block != block || at.microbatch != 0) continue;
    if (slot < 0) slot = at.slot;
    if (at.slot == slot) tails.forward = at.lane == Lane::tensor ? 0 : tails.forward + seconds[i];
    if (at.op == Op::backward_weight) weight = seconds[i];
    if (has_collective && at.lane == Lane::tensor && at.is_backward) sum = seconds[i];
  }
  tails.backward = std::max(0.0, weight - sum);
  return tails;
}

// `gather` is the time of the gather at the start of a forward pass, `first` that of the collective at the
// start of a backward pass.
HiddenGathers hidden_gathers(const Tails& embedding, const Tails& layer, const Tails& dense, double gather,
                             double first) {
  const double longest =
      std::max({embedding.backward, layer.forward, layer.backward, dense.forward, dense.backward});
  const double least = std::min(layer.backward, dense.backward);
  return {std::min(gather, longest), std::max(0.0, std::min(first, longest) - std::min(first, least))};
}

}  // namespace

SampleCosts::SampleCosts(const Demand& demand, const ClusterView& cluster_view)
    : demand_(demand), cluster_view_(cluster_view), sample_model_(demand.model) {
  const bool has_two = has_two_kinds_of_layers(demand.model);
  const std::span<const int> chunk_starts =
      has_two ? std::span(kChunkStartsOfTwoKinds) : std::span(kChunkStarts);
  chunk_starts_.assign(chunk_starts.begin(), chunk_starts.end());
  sample_model_.layers = chunk_starts_.back() - 2;
  if (sample_model_.is_mixture())
    sample_model_.mixture.first_layer = has_two ? kDenseLayers : 0, sample_model_.mixture.layer_interval = 1;
  model_work_ = work_of(sample_model_, demand.sequence_length);
}

const SampleCost& SampleCosts::of(int kind, const Candidate& c, bool with_bytes) {
  std::unique_ptr<SampleCost>& sample_cost =
      costs_[{kind, c.tp, c.cp, c.microbatch, c.ep, static_cast<int>(c.recompute) * 2 + c.sequence_parallel}];
  if (!sample_cost) sample_cost = compute_cost(kind, c);
  if (with_bytes && !sample_cost->has_bytes) add_bytes(kind, c, *sample_cost);
  return *sample_cost;
}

std::unique_ptr<SampleCost> SampleCosts::compute_cost(int kind, const Candidate& c) const {
  const DeviceKind& device = cluster_view_.kinds()[static_cast<std::size_t>(kind)];
  const DeviceMap map =
      contiguous_map(device.first_of_group, num_sample_devices(c), cluster_view_.cluster().num_devices());
  const Plan plan = sample_plan(demand_, sample_model_, chunk_starts_, c, false);
  const std::vector<SampleChunk> chunks = chunks_of(chunk_starts_);
  const Setup setup{plan, sample_model_,    cluster_view_.cluster(),
                    map,  demand_.software, format_of(demand_.precision)};
  const PricedProgram priced(setup, model_work_, compile_without_buffers(plan, sample_model_, 0),
                             device.example);
  const Order order = order_of(plan.schedule, {0, 1, 1, static_cast<int>(chunks.size())});
  Constants without_interference = demand_.constants;
  without_interference.interference = 0;  // only gradient reductions of the last micro-batch interfere
  const StageTimes times = simulate_lanes(priced, order, demand_.software, without_interference);

  auto sample_cost = std::make_unique<SampleCost>();
  const std::vector<double> seconds = priced.price(demand_.constants);
  double gather = 0, exchange = 0;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const Op op = priced.program().instructions[i].op;
    if (op == Op::all_gather) gather = std::max(gather, seconds[i]);
    if (op == Op::dispatch || op == Op::combine) exchange = std::max(exchange, seconds[i]);
  }
  const double slot_seconds =
      priced.is_measured() ? 0 : demand_.constants.slot_seconds * demand_.constants.host_residual;
  const bool has_two = chunks.size() > 4;
  const auto tails = [&](SampleChunk chunk, bool has_collective) {
    return tails_of(priced.program(), seconds, chunk_starts_[chunk], has_collective);
  };
  const HiddenGathers hidden =
      hidden_gathers(tails(embedding_chunk, false), tails(one_layer, true),
                     tails(has_two ? one_dense : one_layer, true), gather, std::max(gather, exchange));
  sample_cost->forward = slot_cost(chunks, times.forward, hidden.forward, slot_seconds);
  sample_cost->backward = slot_cost(chunks, times.backward, hidden.backward, slot_seconds);
  sample_cost->hidden_by_weight_slot = gather - hidden.forward;
  sample_cost->first_collective = std::max(gather, exchange);
  for (SlotCost* cost : {&sample_cost->forward, &sample_cost->backward})
    cost->head -= std::max(0.0, gather - (cost == &sample_cost->forward ? hidden.forward : hidden.backward));
  // Token gradients are sent to the experts of the last layer while the head's weight gradient is computed.
  sample_cost->backward.head -= exchange;
  sample_cost->host_seconds_before = times.before_first_slot.seconds;
  const auto of_block = [&](SampleChunk chunk) {
    return seconds_of_block(priced.program(), seconds, chunk_starts_[chunk]);
  };
  const BlockSeconds layer = of_block(one_layer), embedding = of_block(embedding_chunk),
                     head = of_block(head_chunk), dense = has_two ? of_block(one_dense) : layer;
  // In a split backward pass, input gradients and collectives run one after another, so nothing hides the
  // collectives.
  const bool is_fully_recomputed = c.recompute == RecomputeMode::full;
  const auto input = [&](const BlockSeconds& block) {
    return block.input + block.backward_collectives + block.recompute +
           (is_fully_recomputed && c.cp == 1 ? block.forward_collectives / 3 : 0);
  };
  const auto backward = [](const BlockSeconds& block) {
    return block.input + block.weight + block.recompute;
  };
  sample_cost->input = {slot_seconds, input(layer), 0, head.input + std::max(0.0, head.weight - exchange),
                        input(dense) - input(layer)};
  sample_cost->weight = {slot_seconds, layer.weight, embedding.weight, 0, dense.weight - layer.weight};
  sample_cost->forward_compute = {0, layer.forward, embedding.forward, head.forward,
                                  dense.forward - layer.forward};
  sample_cost->backward_compute = {0, backward(layer), embedding.weight, head.input + head.weight,
                                   backward(dense) - backward(layer)};
  sample_cost->update_layer = layer.update, sample_cost->update_embedding = embedding.update,
  sample_cost->update_head = head.update, sample_cost->update_dense = dense.update;

  const double tokens =
      static_cast<double>(c.microbatch) * static_cast<double>(demand_.sequence_length) / c.cp;
  const double whole_bytes = tokens * static_cast<double>(demand_.model.hidden) * bytes_of(demand_.precision);
  const bool has_slices = demand_.software.scatters_messages || c.sequence_parallel;
  sample_cost->boundary_bytes = whole_bytes / (has_slices ? c.tp : 1);
  // The slack covers the gather of received slices among tensor-parallel ranks, and gathers that are hidden
  // in the slots of the sample.
  sample_cost->slack = 3 * gather + LinkCost(demand_.constants)
                                        .collective_seconds(Collective::gather,
                                                            cluster_view_.spread(kind, c.tp, 1), whole_bytes);

  return sample_cost;
}

void SampleCosts::add_bytes(int kind, const Candidate& c, SampleCost& sample_cost) const {
  const DeviceKind& device = cluster_view_.kinds()[static_cast<std::size_t>(kind)];
  const DeviceMap map =
      contiguous_map(device.first_of_group, num_sample_devices(c), cluster_view_.cluster().num_devices());
  const std::vector<SampleChunk> chunks = chunks_of(chunk_starts_);
  const Plan stages = sample_plan(demand_, sample_model_, chunk_starts_, c, true);
  const Setup setup{stages, sample_model_,    cluster_view_.cluster(),
                    map,    demand_.software, format_of(demand_.precision)};
  const auto of_stage = [&](SampleChunk chunk) {
    const auto stage = std::find(chunks.begin(), chunks.end(), chunk) - chunks.begin();
    return bytes_of_stage(setup, static_cast<int>(stage), demand_.constants);
  };
  sample_cost.layer = of_stage(one_layer);
  const Mixture& mixture = demand_.model.mixture;
  sample_cost.layer.experts = 3.0 * static_cast<double>(mixture.experts / c.ep) *
                              static_cast<double>(mixture.ffn) * static_cast<double>(demand_.model.hidden);
  sample_cost.dense = chunks.size() > 4 ? of_stage(one_dense) : sample_cost.layer;
  sample_cost.embedding = of_stage(embedding_chunk);
  sample_cost.head = of_stage(head_chunk);
  sample_cost.has_bytes = true;
}

}  // namespace optimus
