// See specimen.h.
#include "search/specimen.h"

#include <algorithm>

#include "cost/memory_cost.h"
#include "plan/layouts.h"
#include "simulate/lanes.h"

namespace optimus {
namespace {

// Three layers in four chunks: the embedding; a layer; two layers; the head.
constexpr int kSpecimenLayers = 3;
constexpr int kFirsts[] = {0, 1, 2, 4, 5};
enum SpecimenChunk { the_embedding, one_layer, two_layers, the_head, kSpecimenChunks };
constexpr int kLoneLayer = 1;

// As one stage of four chunks (for slots), or as four stages (for memory).
Plan specimen_plan(const Demand& demand, const ModelSpec& small, const Candidate& c, bool as_stages) {
  Plan plan;
  plan.num_blocks = num_blocks(small);
  plan.batch = c.microbatch, plan.sequence_length = demand.sequence_length;
  plan.schedule = as_stages ? Schedule::gpipe : Schedule::interleaved;
  plan.precision = demand.precision;
  plan.accumulators = demand.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  Candidate alone = c;
  alone.zero = alone.shard_group = 0, alone.offload = false;
  Pipeline pipeline;
  pipeline.microbatches.assign(1, c.microbatch);
  std::vector<int> devices;
  for (int i = 0; i < c.tp * c.cp; ++i) devices.push_back(i);
  for (int chunk = 0; chunk < kSpecimenChunks; ++chunk) {
    const Chunk blocks{{{kFirsts[chunk], kFirsts[chunk + 1] - kFirsts[chunk], strategy_of(alone)}}};
    if (as_stages || chunk == 0) pipeline.stages.push_back({devices, {}});
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

// `hidden`: what may be done before a slot begins, beside the end of the one before it; `slot`: what every slot takes.
SlotCost slot_cost(const std::vector<SlotTime>& slots, double hidden, double slot) {
  SlotCost cost;
  const auto seconds = [&](SpecimenChunk chunk) { return slots[chunk].seconds; };
  cost.layer = seconds(two_layers) - seconds(one_layer);
  cost.base = seconds(one_layer) - cost.layer - hidden;
  cost.embedding = seconds(the_embedding) - slot;
  cost.head = seconds(the_head) - slot - hidden;
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

// Sums over one block's instructions of the first micro-batch.
struct BlockSeconds {
  double forward = 0, input = 0, weight = 0, recompute = 0;  // compute
  double backward_sums = 0, forward_sums = 0;                // collectives among tensor parts
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

}  // namespace

Specimens::Specimens(const Demand& demand, const Ground& ground)
    : demand_(demand), ground_(ground), small_(demand.model) {
  small_.layers = kSpecimenLayers;
  work_ = work_of(small_, demand.sequence_length);
}

const Specimen& Specimens::of(int kind, const Candidate& c) {
  std::uint64_t key = static_cast<std::uint64_t>(kind);
  for (const int part : {c.tp, c.cp, c.microbatch}) key = key << 14 | static_cast<std::uint64_t>(part);
  key = key << 3 | static_cast<std::uint64_t>(c.recompute) << 1 |
        static_cast<std::uint64_t>(c.sequence_parallel);
  std::unique_ptr<Specimen>& specimen = known_[key];
  if (!specimen) specimen = make(kind, c);
  return *specimen;
}

std::unique_ptr<Specimen> Specimens::make(int kind, const Candidate& c) const {
  const DeviceKind& device = ground_.kinds()[static_cast<std::size_t>(kind)];
  const DeviceMap map = contiguous(device.first_of_group, c.tp * c.cp, ground_.cluster().num_devices());
  const Plan plan = specimen_plan(demand_, small_, c, false);
  const Setup setup{plan, small_, ground_.cluster(), map, demand_.software, format_of(demand_.precision)};
  const PricedProgram priced(setup, work_, compile_without_buffers(plan, small_, 0), device.example);
  const Order order = order_of(plan.schedule, {0, 1, 1, kSpecimenChunks});
  Constants alone = demand_.constants;
  alone.interference = 0;  // of gradients over context parts, which only the last micro-batch has
  const StageTimes times = run_lanes(priced, order, demand_.software, alone);

  auto specimen = std::make_unique<Specimen>();
  const std::vector<double> seconds = priced.price(demand_.constants);
  double gather = 0;
  for (std::size_t i = 0; i < seconds.size(); ++i)
    if (priced.program().instructions[i].op == Op::all_gather) gather = std::max(gather, seconds[i]);
  const double slot =
      priced.is_measured() ? 0 : demand_.constants.slot_seconds * demand_.constants.host_residual;
  specimen->forward = slot_cost(times.forward, gather, slot);
  specimen->backward = slot_cost(times.backward, gather, slot);
  specimen->before = times.before.seconds;
  const BlockSeconds layer = seconds_of_block(priced.program(), seconds, kLoneLayer),
                     embedding = seconds_of_block(priced.program(), seconds, 0),
                     head = seconds_of_block(priced.program(), seconds, kSpecimenLayers + 1);
  // The input gradients of a split backward stand one behind the other with their sums; nothing hides these.
  const bool computes_again = c.recompute == RecomputeMode::full;
  const double again = layer.recompute + (computes_again && c.cp == 1 ? layer.forward_sums / 3 : 0);
  specimen->input = {slot, layer.input + layer.backward_sums + again, 0, head.input + head.weight};
  specimen->weight = {slot, layer.weight, embedding.weight, 0};
  specimen->forward_compute = {0, layer.forward, embedding.forward, head.forward};
  specimen->backward_compute = {0, layer.input + layer.weight + layer.recompute, embedding.weight,
                                head.input + head.weight};
  specimen->update_layer = layer.update, specimen->update_embedding = embedding.update,
  specimen->update_head = head.update;

  const double tokens =
      static_cast<double>(c.microbatch) * static_cast<double>(demand_.sequence_length) / c.cp;
  const double whole = tokens * static_cast<double>(demand_.model.hidden) * bytes_of(demand_.precision);
  const bool has_slices = demand_.software.scatters_messages || c.sequence_parallel;
  specimen->boundary_bytes = whole / (has_slices ? c.tp : 1);
  // Gathering what arrived where each tensor part got its slice; and what the specimen's slots hide.
  specimen->slack =
      3 * gather +
      LinkCost(demand_.constants).collective(Collective::gather, ground_.spread(kind, c.tp, 1), whole);

  const Plan stages = specimen_plan(demand_, small_, c, true);
  const Setup apart{stages, small_, ground_.cluster(), map, demand_.software, setup.format};
  specimen->layer = bytes_of_stage(apart, one_layer, demand_.constants);
  specimen->embedding = bytes_of_stage(apart, the_embedding, demand_.constants);
  specimen->head = bytes_of_stage(apart, the_head, demand_.constants);
  return specimen;
}

}  // namespace optimus
