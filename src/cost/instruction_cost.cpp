// See instruction_cost.h.
#include "cost/instruction_cost.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "cost/measured_cost.h"
#include "model/tensors.h"
#include "plan/fp8.h"
#include "plan/layouts.h"

namespace optimus {
namespace {

// Memory traffic in the backward pass of an inexpensive operation, relative to the forward pass. The backward
// pass reads the output gradient and the saved input and writes the input gradient.
constexpr double kBackwardTraffic = 1.5;
// Bytes of memory traffic per 16-bit score in unfused attention. In the forward pass, the first GEMM writes
// the score, mask and softmax read and write it, dropout reads and writes it and also writes a dropout mask,
// and the second GEMM reads it. The backward pass has the traffic of the scores and of their gradients.
constexpr double kScoreBytesForward = 13, kScoreBytesBackward = 17;
// The same with separate kernels for scaling, mask, softmax and dropout, assuming that scores do not stay in
// caches.
constexpr double kEagerScoreForward = 17, kEagerScoreBackward = 22.5;
// Bytes of memory traffic of an optimizer update per byte of optimizer state. For each parameter, 12 bytes of
// state are read and written (24 bytes), the fp32 gradient is read twice and cleared (12 bytes), and the
// 16-bit weight is written (2 bytes), for a total of 38 bytes.
constexpr double kOptimizerTraffic = 38.0 / 12;

bool is_message(Op op) {
  return op == Op::send || op == Op::receive || op == Op::send_copy || op == Op::receive_copy;
}

double kernels_of(const WorkItem& item, const Software& software, bool is_low_precision) {
  switch (item.kind) {
    case OperationKind::gemm:
      return is_low_precision ? 4 : 1.5;
    case OperationKind::attention:
      return software.has_flash_attention() ? 1 : software.has_fused_softmax ? 5 : 9;
    // Kernels for scores, top-k, token counts per expert, sorting, and copies in both directions.
    case OperationKind::routing:
      return software.kernels == KernelStyle::eager ? 20 : software.kernels == KernelStyle::fused ? 8 : 4;
    case OperationKind::embedding:
    case OperationKind::norm:
    case OperationKind::rope:
    case OperationKind::activation:
    case OperationKind::residual:
    case OperationKind::loss:
    case OperationKind::custom:
      return software.kernels == KernelStyle::eager ? 3 : software.kernels == KernelStyle::fused ? 1 : 0.5;
  }
  return 1;
}

}  // namespace

GemmFormat format_of(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return {NumberFormat::fp64};
    case Precision::fp32:
      return {NumberFormat::tf32};
    case Precision::bf16:
      return {NumberFormat::bf16};
    case Precision::fp16:
      return {NumberFormat::fp16};
    case Precision::fp8:
      return {NumberFormat::fp8};
  }
  return {};
}

PricedProgram::PricedProgram(const Setup& setup, const ModelWork& model_work, Program program, Device device)
    : setup_(setup),
      model_work_(model_work),
      program_(std::move(program)),
      stage_(setup.plan.pipelines[static_cast<std::size_t>(program_.location.pipeline)]
                 .stages[static_cast<std::size_t>(program_.location.stage)]),
      device_(device),
      width_(bytes_of(setup.plan.precision)),
      fp8_blocks_(fp8_blocks(setup.plan)) {
  for (const Group& group : program_.groups)
    group_shapes_.push_back(group.role == Role::world ? shape_of_all(num_devices(setup.plan), setup.cluster)
                                                      : shape_of(group.members, setup.cluster, setup.map));
  for (const Buffer& buffer : program_.buffers)
    if (buffer.kind == BufferKind::optimizer_state || buffer.kind == BufferKind::copy_state)
      state_[buffer.block] += static_cast<double>(buffer.bytes.value);
  // The key contains everything on which the cost of an instruction depends.
  using Key = std::tuple<Op, Part, int, const LayerStrategy*, int, int, int, std::int64_t, bool, bool>;
  std::map<Key, int> cost_index;
  const Pipeline& pipeline = setup.plan.pipelines[static_cast<std::size_t>(program_.location.pipeline)];
  const int num_instructions = static_cast<int>(program_.instructions.size());
  price_index_.resize(program_.instructions.size());
  for (int i = 0; i < num_instructions; ++i) {
    const Instruction& at = program_.instructions[static_cast<std::size_t>(i)];
    const int sequences =
        at.microbatch < 0 ? 0 : pipeline.microbatches[static_cast<std::size_t>(at.microbatch)];
    // A tied embedding is also reduced by the last stage, which does not contain block 0.
    const bool has_block = at.block >= 0 && !is_message(at.op) && at.op != Op::sync_gradients;
    const Key key{at.op,
                  at.part,
                  has_block ? pattern(setup.model, at.block) : -1,
                  has_block ? &strategy(at.block) : nullptr,
                  sequences,
                  at.group,
                  at.op == Op::receive_copy ? at.peer : -1,
                  at.bytes,
                  at.is_backward,
                  has_block && is_low_precision(at.block)};
    const auto [found, is_new] = cost_index.try_emplace(key, static_cast<int>(example_instruction_.size()));
    if (is_new) example_instruction_.push_back(i);
    price_index_[static_cast<std::size_t>(i)] = found->second;
  }
}

bool PricedProgram::is_measured() const {
  const DeviceCost device(setup_.cluster.type_of(device_), 1, setup_.software, fitted_constants());
  return device.measured_kernels(setup_.format.format) != nullptr;
}

std::vector<double> PricedProgram::price(const Constants& constants) const {
  const DeviceCost device(setup_.cluster.type_of(device_), setup_.cluster.speed_of(device_), setup_.software,
                          constants);
  const LinkCost links(constants);
  std::vector<double> prices;
  for (const int i : example_instruction_)
    prices.push_back(price_instruction(program_.instructions[static_cast<std::size_t>(i)], device, links));
  std::vector<double> seconds(price_index_.size());
  for (std::size_t i = 0; i < price_index_.size(); ++i)
    seconds[i] = prices[static_cast<std::size_t>(price_index_[i])];
  return seconds;
}

double PricedProgram::price_instruction(const Instruction& instruction, const DeviceCost& device,
                                        const LinkCost& links) const {
  switch (instruction.op) {
    case Op::load_batch:
      return host_seconds_of_step(device);
    case Op::forward:
    case Op::recompute:
    case Op::backward_input:
    case Op::backward_weight:
      return compute_seconds(instruction, device);
    case Op::send:
    case Op::receive:
    case Op::send_copy:  // the time is counted at the receiver
      return 0;
    case Op::receive_copy:
      return links.message_seconds(setup_.cluster.link(setup_.map[VirtualDevice{program_.device}],
                                                       setup_.map[VirtualDevice{instruction.peer}]),
                                   static_cast<double>(instruction.bytes));
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_reduce:
    case Op::ring_exchange:
    case Op::dispatch:
    case Op::combine:
    case Op::gather_parameters:
    case Op::reduce_gradients:
    case Op::sync_gradients:
    case Op::step_gate:
      return collective_seconds(instruction, device, links);
    case Op::optimizer:
      return optimizer_seconds(instruction, device);
  }
  return 0;
}

double PricedProgram::host_seconds_of_step(const DeviceCost& device) const {
  const Constants& constants = device.constants();
  const KernelTimes* const times = device.measured_kernels(setup_.format.format);
  int num_owners = 0;
  if (setup_.software.broadcasts_shards)
    for (const Group& group : program_.groups)
      if (group.role == Role::shard)
        num_owners = std::max(num_owners, static_cast<int>(group.members.size()));
  return (times ? times->step_seconds
                : constants.step_seconds + num_owners * constants.broadcast_turn_seconds) *
         constants.host_residual;
}

double PricedProgram::device_tokens(const Instruction& instruction) const {
  const Pipeline& pipeline = setup_.plan.pipelines[static_cast<std::size_t>(program_.location.pipeline)];
  const LayerStrategy& s = strategy(instruction.block);
  const int dp = data_parallel(stage_, s);
  const int sequences = pipeline.microbatches[static_cast<std::size_t>(std::max(0, instruction.microbatch))];
  return static_cast<double>((sequences + dp - 1) / dp) * static_cast<double>(setup_.plan.sequence_length) /
         s.cp;
}

double PricedProgram::compute_seconds(const Instruction& instruction, const DeviceCost& device) const {
  const LayerStrategy& s = strategy(instruction.block);
  const double num_tokens = device_tokens(instruction);
  const bool is_ring = s.cp > 1;
  double seconds = 0, kernels = 0;
  for (const WorkItem& item :
       model_work_.patterns[static_cast<std::size_t>(pattern(setup_.model, instruction.block))]) {
    if ((is_ring ? item.ring_part : item.part) != instruction.part) continue;
    // With context parallelism, attention runs in cp ring steps, each on 1 / cp of the keys.
    const double ring_steps = instruction.part == Part::attention_ring_step ? s.cp : 1;
    // The Optimus engine does not recompute the output of a layer if no later layer in the recompute group
    // reads it.
    const bool is_output_skipped =
        item.ends_layer && instruction.op == Op::recompute && setup_.software.runs_programs;
    const double executed_fraction = is_output_skipped ? 1 - 1.0 / s.recompute_layers : 1;
    seconds += item_seconds(item, instruction, num_tokens, s, device) * executed_fraction / ring_steps;
    const bool is_for_weights = instruction.op == Op::backward_weight;
    if (!is_for_weights || item.kind == OperationKind::gemm)
      kernels += kernels_of(item, setup_.software, setup_.format.is_low_precision());
  }
  const KernelTimes* const times = device.measured_kernels(setup_.format.format);
  const double launch_bound = times ? kernels * times->launch_seconds * device.constants().host_residual
                                    : device.launch_overhead_seconds(kernels);
  return std::max(seconds, launch_bound) * residual_factor_of(instruction.block, device.constants());
}

double PricedProgram::residual_factor_of(int block, const Constants& constants) const {
  switch (block_kind(setup_.model, block)) {
    case BlockKind::embedding:
      return constants.embedding_residual;
    case BlockKind::head:
      return constants.head_residual;
    default:
      return 1;
  }
}

double PricedProgram::item_seconds(const WorkItem& item, const Instruction& instruction, double num_tokens,
                                   const LayerStrategy& s, const DeviceCost& device) const {
  const Op op = instruction.op;
  const double fraction = share_of_part(setup_.model, item.split, s.tp);
  const bool is_split_by_rows = item.split == SplitUnit::none && s.sequence_parallel;
  const double own_tokens = is_split_by_rows ? num_tokens / s.tp : num_tokens;
  const bool is_weight = op == Op::backward_weight, is_forward = op == Op::forward || op == Op::recompute;
  // How often selective recomputation repeats the forward pass. Its time is added to the input gradient.
  double num_repeats = 0;
  if (op == Op::backward_input && s.recompute == RecomputeMode::selective) {
    const SelectiveMeaning meaning = setup_.software.selective;
    const bool is_pointwise = item.kind != OperationKind::gemm && item.kind != OperationKind::attention;
    if (meaning == SelectiveMeaning::attention_core) num_repeats = item.kind == OperationKind::attention;
    if (meaning == SelectiveMeaning::pointwise_operations) num_repeats = item.is_recomputed_by_selective;
    if (meaning == SelectiveMeaning::every_other_gemm)
      num_repeats = is_pointwise ? 1 : item.kind == OperationKind::gemm ? 0.5 : 0;
  }
  Instruction forward = instruction;
  forward.op = Op::recompute;
  const double recompute_seconds =
      num_repeats > 0 ? num_repeats * item_seconds(item, forward, num_tokens, s, device) : 0;
  const KernelTimes* const times = device.measured_kernels(setup_.format.format);
  if (times != nullptr && item.part != Part::experts) {
    const MeasuredTask task{item,
                            op,
                            own_tokens,
                            fraction,
                            model_work_.head_dim,
                            model_work_.sequence_length,
                            model_work_.is_causal,
                            setup_.model.norm_position == NormPosition::post,
                            is_low_precision(instruction.block),
                            setup_.plan.fp8.scaling == Fp8Scaling::current};
    const bool is_bound_by_memory = item.kind != OperationKind::gemm && item.kind != OperationKind::attention;
    const double residual =
        is_bound_by_memory ? device.constants().memory_residual : device.constants().compute_residual;
    if (const double seconds = measured_seconds(*times, task); seconds >= 0)
      return seconds * residual / device.speed() + recompute_seconds;
  }
  switch (item.kind) {
    case OperationKind::gemm:
      return gemm_seconds(item, op, own_tokens, fraction, s, device) + recompute_seconds;
    case OperationKind::attention:
      return is_weight ? 0 : attention_seconds(item, op, own_tokens, fraction, device) + recompute_seconds;
    case OperationKind::loss: {
      // With a chunked loss, the gradient overwrites the logits, so the logits are written and read only
      // once.
      const double passes = setup_.software.has_chunked_loss ? 1 : device.constants().loss_traffic;
      return is_weight ? 0
                       : device.traffic_seconds(item.accessed_elements * width_ * fraction * own_tokens *
                                                0.5 * passes);
    }
    case OperationKind::embedding:
      return is_weight || is_forward
                 ? device.traffic_seconds(item.accessed_elements * 2 * width_ * own_tokens)
                 : 0;
    case OperationKind::custom: {
      const double flops =
          is_weight || is_forward ? item.forward_flops : item.backward_flops - item.forward_flops;
      return flops / 2 > 0 ? device.gemm_seconds(own_tokens, flops / 2, 1, setup_.format) : 0;
    }
    case OperationKind::norm:
    case OperationKind::rope:
    case OperationKind::activation:
    case OperationKind::residual:
    case OperationKind::routing: {
      if (is_weight) return 0;
      const double load = item.part == Part::experts ? expert_imbalance_factor(s, device.constants()) : 1;
      const double bytes = item.accessed_elements * width_ * fraction * own_tokens * load;
      return device.pointwise_traffic_seconds(is_forward ? bytes : kBackwardTraffic * bytes) +
             recompute_seconds;
    }
  }
  return 0;
}

double PricedProgram::expert_imbalance_factor(const LayerStrategy& s, const Constants& constants) const {
  return s.ep == 1 || setup_.software.balances_experts ? 1 : constants.expert_imbalance;
}

double PricedProgram::gemm_seconds(const WorkItem& item, Op op, double num_tokens, double fraction,
                                   const LayerStrategy& s, const DeviceCost& device) const {
  const double inner = item.inner, outer = item.outer * fraction;
  const bool is_of_experts = item.part == Part::experts;
  const double experts = item.experts / (is_of_experts ? s.ep : 1);  // number of experts on this device
  const double rows =
      num_tokens * item.passes * (is_of_experts ? expert_imbalance_factor(s, device.constants()) : 1);
  // All software computes the output projection in 16-bit formats.
  const bool is_low_precision = setup_.format.is_low_precision() && item.split != SplitUnit::vocab;
  const GemmFormat format =
      setup_.format.is_low_precision() && !is_low_precision ? GemmFormat{} : setup_.format;
  const double seconds = is_of_experts ? device.grouped_gemm_seconds(rows, inner, outer, experts, format)
                                       : device.gemm_seconds(rows, inner, outer, format);
  // Current scaling needs an additional pass over the tensor to find its maximum.
  const bool has_current_scaling = setup_.plan.fp8.scaling == Fp8Scaling::current;
  double bytes = 0;
  if (op == Op::backward_weight) {
    const double gradients = inner * outer * experts * 2 * setup_.software.gradient_bytes;
    bytes += gradients * device.constants().gradient_traffic;
    if (is_low_precision) bytes += rows * (inner * fraction + outer) * 2 * device.constants().fp8_cast;
    if (is_low_precision && has_current_scaling)
      bytes += rows * inner * fraction * 2;  // a copy of the output gradient
  } else if (is_low_precision) {
    // A cast reads 16 bits and writes 8 bits per element. Weights are included unless later micro-batches
    // reuse their fp8 copy.
    const double cast_elements = op == Op::backward_input ? rows * outer : rows * inner;
    const double weights = setup_.software.kernels == KernelStyle::compiled ? inner * outer * experts : 0;
    bytes += (cast_elements + weights) * 3 * device.constants().fp8_cast;
    if (has_current_scaling) bytes += cast_elements * 2;
  }
  return seconds + device.traffic_seconds(bytes);
}

double PricedProgram::attention_seconds(const WorkItem& item, Op op, double num_tokens, double fraction,
                                        const DeviceCost& device) const {
  const bool is_backward = op == Op::backward_input;
  const double flops = (is_backward ? item.backward_flops : item.forward_flops) * fraction * num_tokens;
  const NumberFormat format = setup_.format.is_low_precision() ? NumberFormat::bf16 : setup_.format.format;
  if (setup_.software.has_flash_attention())
    return device.flash_seconds(flops, model_work_.head_dim, is_backward, format);
  // Counts all positions, including masked positions. The backward pass recomputes nothing.
  const double length = model_work_.sequence_length;
  const double flops_of_scores =
      4 * model_work_.query_width * length * (is_backward ? 2 : 1) * fraction * num_tokens;
  const double num_scores = model_work_.query_width / model_work_.head_dim * length * fraction * num_tokens;
  const bool is_fused = setup_.software.has_fused_softmax;
  const double forward = is_fused ? kScoreBytesForward : kEagerScoreForward,
               backward = is_fused ? kScoreBytesBackward : kEagerScoreBackward;
  const double bytes = num_scores * width_ / 2 * (is_backward ? backward : forward);
  return device.score_gemm_seconds(flops_of_scores, length, model_work_.head_dim, format) +
         device.traffic_seconds(bytes * (is_fused ? device.constants().score_traffic : 1));
}

double PricedProgram::collective_seconds(const Instruction& instruction, const DeviceCost& device,
                                         const LinkCost& links) const {
  const GroupShape& shape = group_shapes_[static_cast<std::size_t>(instruction.group)];
  const auto bytes = static_cast<double>(instruction.bytes);
  if (instruction.op == Op::ring_exchange) return exposed_ring_seconds(instruction, device, links);
  if (instruction.op == Op::dispatch || instruction.op == Op::combine)
    return links.exchange_seconds(
        shape, bytes * expert_imbalance_factor(strategy(instruction.block), device.constants()),
        static_cast<double>(setup_.model.mixture.experts_per_token));
  if (instruction.op == Op::gather_parameters) {
    // Plans for the Optimus engine list their fp8 layers. Other software gathers all parameters in one
    // format.
    const bool is_optimus = setup_.software.runs_programs;
    const bool is_fp8_gather =
        is_optimus ? is_low_precision(instruction.block) && strategy(instruction.block).zero == 3
                   : setup_.software.gathers_in_fp8 && setup_.format.is_low_precision();
    return links.collective_seconds(Collective::gather, shape, is_fp8_gather ? bytes / 2 : bytes);
  }
  if (instruction.op == Op::reduce_gradients) {
    const bool is_shard = program_.groups[static_cast<std::size_t>(instruction.group)].role == Role::shard;
    return links.collective_seconds(is_shard ? Collective::reduce_scatter : Collective::all_reduce, shape,
                                    bytes);
  }
  if (instruction.op == Op::sync_gradients || instruction.op == Op::step_gate)
    return links.collective_seconds(Collective::all_reduce, shape, bytes);
  // If the previous stage sent whole activations, the receiver has nothing to gather.
  const bool is_arrival = instruction.op == Op::all_gather && !strategy(instruction.block).sequence_parallel;
  if (is_arrival && !setup_.software.scatters_messages) return 0;
  const Collective kind = instruction.op == Op::all_gather       ? Collective::gather
                          : instruction.op == Op::reduce_scatter ? Collective::reduce_scatter
                                                                 : Collective::all_reduce;
  const double seconds = links.collective_seconds(kind, shape, bytes);
  return setup_.software.overlaps_tensor ? seconds * (1 - device.constants().tensor_hidden) : seconds;
}

// Seconds taken by a ring exchange that compute does not hide. Each device sends keys and values while it
// computes with them. The programs of the Optimus engine contain this overlap. Other software is assumed to
// overlap equally well, also in the backward pass.
double PricedProgram::exposed_ring_seconds(const Instruction& instruction, const DeviceCost& device,
                                           const LinkCost& links) const {
  const double seconds = links.collective_seconds(Collective::ring_step,
                                                  group_shapes_[static_cast<std::size_t>(instruction.group)],
                                                  static_cast<double>(instruction.bytes));
  if (setup_.software.runs_programs) return seconds;
  Instruction ring_step = instruction;
  ring_step.op = instruction.is_backward ? Op::backward_input : Op::forward;
  ring_step.part = Part::attention_ring_step;
  return std::max(0.0, seconds - compute_seconds(ring_step, device));
}

double PricedProgram::optimizer_seconds(const Instruction& instruction, const DeviceCost& device) const {
  const auto state = state_.find(instruction.block);
  const bool is_offloaded = strategy(instruction.block).offload;
  double bytes = state == state_.end() ? 0 : state->second;
  if (is_offloaded) {
    // Gradients are copied to the host and weights are copied back. The host updates the weights at the same
    // time.
    const LinkSpec& host = setup_.cluster.group_of(device_).host_link;
    for (const Buffer& buffer : program_.buffers)
      if (buffer.block == instruction.block && buffer.kind == BufferKind::gradients)
        bytes = static_cast<double>(buffer.bytes.value) * 1.5;
    return bytes / (host.bytes_per_second * host.efficiency.at(bytes));
  }
  if (const KernelTimes* times = device.measured_kernels(setup_.format.format)) {
    const double parameters =
        bytes / state_bytes(setup_.plan.precision, setup_.plan.accumulators, StateKind::optimizer);
    if (const double seconds = times->seconds("update", parameters, {parameters}); seconds >= 0)
      return seconds * device.constants().memory_residual / device.speed();
  }
  return device.traffic_seconds(bytes * kOptimizerTraffic * device.constants().optimizer_traffic);
}

}  // namespace optimus
