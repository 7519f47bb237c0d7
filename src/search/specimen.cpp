// See specimen.h.
#include "search/specimen.h"

#include <algorithm>
#include <array>
#include <span>

#include "cost/memory_cost.h"
#include "plan/layouts.h"
#include "simulate/lanes.h"

namespace optimus {
namespace {

// The smallest number of devices of a stage with this split.
int num_in_specimen(const Candidate& c) { return c.tp * c.cp * replica_step(c); }

// The sample model has three layers in four chunks: the embedding; the head; one layer; two layers. If a
// mixture-of-experts model has two kinds of layers, its sample has three more chunks after the embedding: one
// dense layer, two dense layers, and one layer of each kind.
enum SpecimenChunk { the_embedding, one_dense, two_dense, one_of_each, one_layer, two_layers, the_head };
constexpr int kFirsts[] = {0, 1, 1, 1, 1, 2, 4, 5}, kFirstsOfTwo[] = {0, 1, 2, 4, 6, 7, 9, 10};
constexpr int kDenseLayers = 4;  // number of dense layers of such a sample; they come first

// The chunks in the order of their blocks, without the dense ones if the model has one kind of layers.
std::vector<SpecimenChunk> chunks_of(const std::vector<int>& firsts) {
  std::vector<SpecimenChunk> chunks;
  for (const SpecimenChunk chunk :
       {the_embedding, one_dense, two_dense, one_of_each, one_layer, two_layers, the_head})
    if (firsts[chunk] < firsts[chunk + 1]) chunks.push_back(chunk);
  return chunks;
}

// The sample's chunks as one stage (to measure slots) or as several stages (to measure memory).
Plan specimen_plan(const Demand& demand, const ModelSpec& small, const std::vector<int>& firsts,
                   const Candidate& c, bool as_stages) {
  Plan plan;
  plan.num_blocks = num_blocks(small);
  plan.sequence_length = demand.sequence_length;
  plan.schedule = as_stages ? Schedule::gpipe : Schedule::interleaved;
  plan.precision = demand.precision;
  plan.accumulators = demand.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  Candidate alone = c;
  alone.zero = alone.shard_group = 0, alone.offload = false;
  Pipeline pipeline;
  plan.batch = static_cast<std::int64_t>(c.microbatch) * replica_step(c);
  pipeline.microbatches.assign(1, static_cast<int>(plan.batch));
  std::vector<int> devices;
  for (int i = 0; i < num_in_specimen(c); ++i) devices.push_back(i);
  for (const SpecimenChunk chunk : chunks_of(firsts)) {
    const Chunk blocks{{{firsts[chunk], firsts[chunk + 1] - firsts[chunk], strategy_of(alone)}}};
    if (as_stages || chunk == the_embedding) pipeline.stages.push_back({devices, {}});
    pipeline.stages.back().chunks.push_back(blocks);
  }
  plan.pipelines.push_back(std::move(pipeline));
  return plan;
}

DeviceMap contiguous(Device first, int count, int most) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back({std::min(first.value, std::max(0, most - count)) + i});
  return DeviceMap(std::move(devices));
}

// `hidden`: the part of a slot that the end of the preceding slot may hide; `slot`: the fixed cost of every
// slot.
SlotCost slot_cost(const std::vector<SpecimenChunk>& chunks, const std::vector<SlotTime>& slots,
                   double hidden, double slot) {
  SlotCost cost;
  std::array<double, the_head + 1> seconds{};
  for (std::size_t i = 0; i < chunks.size(); ++i) seconds[chunks[i]] = slots[i].seconds;
  cost.layer = seconds[two_layers] - seconds[one_layer];
  if (seconds[one_of_each] > 0) {
    // After a layer of its own kind or of the other, whichever is faster.
    cost.layer = std::min(cost.layer, seconds[one_of_each] - seconds[one_dense]);
    const double dense =
        std::min(seconds[two_dense] - seconds[one_dense], seconds[one_of_each] - seconds[one_layer]);
    cost.dense = dense - cost.layer;
    cost.base = std::min(seconds[one_layer] - cost.layer, seconds[one_dense] - dense) - hidden;
  } else {
    cost.base = seconds[one_layer] - cost.layer - hidden;
  }
  cost.embedding = seconds[the_embedding] - slot;
  cost.head = seconds[the_head] - slot - hidden;
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

// Sums over the instructions of one block in the first micro-batch.
struct BlockSeconds {
  double forward = 0, input = 0, weight = 0, recompute = 0;  // compute
  double backward_sums = 0, forward_sums = 0;                // collectives among tensor-parallel ranks
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
    if (at.lane == Lane::tensor && at.is_backward) sum.backward_sums += seconds[i];
    if (at.lane == Lane::tensor && !at.is_backward && at.op != Op::ring_exchange)
      sum.forward_sums += seconds[i];
  }
  return sum;
}

// A slot may begin with a gather while the preceding slot still computes without communication (weight
// gradients; experts that are not distributed). forward: how much of a forward's gather may be hidden.
// backward: how much more of a backward's gather may be hidden than in the sample.
struct HiddenGathers {
  double forward = 0, backward = 0;
};

// How long the compute of one block continues after its last collective, at the end of its forward and of its
// backward.
struct Tails {
  double forward = 0, backward = 0;
};
Tails tails_of(const Program& program, const std::vector<double>& seconds, int block, bool has_sum) {
  Tails tails;
  double weight = 0, sum = 0;
  int slot = -1;  // of the block's forward
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const Instruction& at = program.instructions[i];
    if (at.block != block || at.microbatch != 0) continue;
    if (slot < 0) slot = at.slot;
    if (at.slot == slot) tails.forward = at.lane == Lane::tensor ? 0 : tails.forward + seconds[i];
    if (at.op == Op::backward_weight) weight = seconds[i];
    if (has_sum && at.lane == Lane::tensor && at.is_backward) sum = seconds[i];
  }
  tails.backward = std::max(0.0, weight - sum);
  return tails;
}

// gather: at the start of a forward; first: at the start of a backward.
HiddenGathers hidden_gathers(const Tails& embedding, const Tails& layer, const Tails& dense, double gather,
                             double first) {
  const double longest =
      std::max({embedding.backward, layer.forward, layer.backward, dense.forward, dense.backward});
  const double least = std::min(layer.backward, dense.backward);
  return {std::min(gather, longest), std::max(0.0, std::min(first, longest) - std::min(first, least))};
}

}  // namespace

Specimens::Specimens(const Demand& demand, const Ground& ground)
    : demand_(demand), ground_(ground), small_(demand.model) {
  const bool has_two = has_two_kinds_of_layers(demand.model);
  const std::span<const int> firsts = has_two ? std::span(kFirstsOfTwo) : std::span(kFirsts);
  firsts_.assign(firsts.begin(), firsts.end());
  small_.layers = firsts_.back() - 2;
  if (small_.is_mixture()) small_.mixture.first_layer = has_two ? kDenseLayers : 0, small_.mixture.every = 1;
  work_ = work_of(small_, demand.sequence_length);
}

const Specimen& Specimens::of(int kind, const Candidate& c, bool with_bytes) {
  std::unique_ptr<Specimen>& specimen =
      known_[{kind, c.tp, c.cp, c.microbatch, c.ep, static_cast<int>(c.recompute) * 2 + c.sequence_parallel}];
  if (!specimen) specimen = make(kind, c);
  if (with_bytes && !specimen->has_bytes) add_bytes(kind, c, *specimen);
  return *specimen;
}

std::unique_ptr<Specimen> Specimens::make(int kind, const Candidate& c) const {
  const DeviceKind& device = ground_.kinds()[static_cast<std::size_t>(kind)];
  const DeviceMap map =
      contiguous(device.first_of_group, num_in_specimen(c), ground_.cluster().num_devices());
  const Plan plan = specimen_plan(demand_, small_, firsts_, c, false);
  const std::vector<SpecimenChunk> chunks = chunks_of(firsts_);
  const Setup setup{plan, small_, ground_.cluster(), map, demand_.software, format_of(demand_.precision)};
  const PricedProgram priced(setup, work_, compile_without_buffers(plan, small_, 0), device.example);
  const Order order = order_of(plan.schedule, {0, 1, 1, static_cast<int>(chunks.size())});
  Constants alone = demand_.constants;
  alone.interference = 0;  // interference of gradient reductions, which only the last micro-batch has
  const StageTimes times = run_lanes(priced, order, demand_.software, alone);

  auto specimen = std::make_unique<Specimen>();
  const std::vector<double> seconds = priced.price(demand_.constants);
  double gather = 0, exchange = 0;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const Op op = priced.program().instructions[i].op;
    if (op == Op::all_gather) gather = std::max(gather, seconds[i]);
    if (op == Op::dispatch || op == Op::combine) exchange = std::max(exchange, seconds[i]);
  }
  const double slot =
      priced.is_measured() ? 0 : demand_.constants.slot_seconds * demand_.constants.host_residual;
  const bool has_two = chunks.size() > 4;
  const auto tails = [&](SpecimenChunk chunk, bool has_sum) {
    return tails_of(priced.program(), seconds, firsts_[chunk], has_sum);
  };
  const HiddenGathers hidden =
      hidden_gathers(tails(the_embedding, false), tails(one_layer, true),
                     tails(has_two ? one_dense : one_layer, true), gather, std::max(gather, exchange));
  specimen->forward = slot_cost(chunks, times.forward, hidden.forward, slot);
  specimen->backward = slot_cost(chunks, times.backward, hidden.backward, slot);
  specimen->hidden_by_weights = gather - hidden.forward;
  specimen->first_collective = std::max(gather, exchange);
  for (SlotCost* cost : {&specimen->forward, &specimen->backward})
    cost->head -= std::max(0.0, gather - (cost == &specimen->forward ? hidden.forward : hidden.backward));
  // Token gradients are sent to the experts of the last layer while the head's weight gradient is computed.
  specimen->backward.head -= exchange;
  specimen->before = times.before.seconds;
  const auto of_block = [&](SpecimenChunk chunk) {
    return seconds_of_block(priced.program(), seconds, firsts_[chunk]);
  };
  const BlockSeconds layer = of_block(one_layer), embedding = of_block(the_embedding),
                     head = of_block(the_head), dense = has_two ? of_block(one_dense) : layer;
  // The input gradients and collectives of a split backward run one after another; nothing hides the
  // collectives.
  const bool computes_again = c.recompute == RecomputeMode::full;
  const auto input = [&](const BlockSeconds& block) {
    return block.input + block.backward_sums + block.recompute +
           (computes_again && c.cp == 1 ? block.forward_sums / 3 : 0);
  };
  const auto backward = [](const BlockSeconds& block) {
    return block.input + block.weight + block.recompute;
  };
  specimen->input = {slot, input(layer), 0, head.input + std::max(0.0, head.weight - exchange),
                     input(dense) - input(layer)};
  specimen->weight = {slot, layer.weight, embedding.weight, 0, dense.weight - layer.weight};
  specimen->forward_compute = {0, layer.forward, embedding.forward, head.forward,
                               dense.forward - layer.forward};
  specimen->backward_compute = {0, backward(layer), embedding.weight, head.input + head.weight,
                                backward(dense) - backward(layer)};
  specimen->update_layer = layer.update, specimen->update_embedding = embedding.update,
  specimen->update_head = head.update, specimen->update_dense = dense.update;

  const double tokens =
      static_cast<double>(c.microbatch) * static_cast<double>(demand_.sequence_length) / c.cp;
  const double whole = tokens * static_cast<double>(demand_.model.hidden) * bytes_of(demand_.precision);
  const bool has_slices = demand_.software.scatters_messages || c.sequence_parallel;
  specimen->boundary_bytes = whole / (has_slices ? c.tp : 1);
  // Gathering received slices among tensor-parallel ranks, and gathers that the sample's slots hide.
  specimen->slack =
      3 * gather +
      LinkCost(demand_.constants).collective(Collective::gather, ground_.spread(kind, c.tp, 1), whole);

  return specimen;
}

void Specimens::add_bytes(int kind, const Candidate& c, Specimen& specimen) const {
  const DeviceKind& device = ground_.kinds()[static_cast<std::size_t>(kind)];
  const DeviceMap map =
      contiguous(device.first_of_group, num_in_specimen(c), ground_.cluster().num_devices());
  const std::vector<SpecimenChunk> chunks = chunks_of(firsts_);
  const Plan stages = specimen_plan(demand_, small_, firsts_, c, true);
  const Setup apart{stages, small_, ground_.cluster(), map, demand_.software, format_of(demand_.precision)};
  const auto of_stage = [&](SpecimenChunk chunk) {
    const auto stage = std::find(chunks.begin(), chunks.end(), chunk) - chunks.begin();
    return bytes_of_stage(apart, static_cast<int>(stage), demand_.constants);
  };
  specimen.layer = of_stage(one_layer);
  const Mixture& mixture = demand_.model.mixture;
  specimen.layer.experts = 3.0 * static_cast<double>(mixture.experts / c.ep) *
                           static_cast<double>(mixture.ffn) * static_cast<double>(demand_.model.hidden);
  specimen.dense = chunks.size() > 4 ? of_stage(one_dense) : specimen.layer;
  specimen.embedding = of_stage(the_embedding);
  specimen.head = of_stage(the_head);
  specimen.has_bytes = true;
}

}  // namespace optimus
