// Implements step_meter.h.
#include "adapt/step_meter.h"

#include <algorithm>
#include <limits>

#include "model/operations.h"
#include "model/tensors.h"
#include "schedule/share.h"

namespace optimus {
namespace {

WorkKind kind_of(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::load_batch:
      return WorkKind::load_batch;
    case Op::forward:
      return WorkKind::forward;
    case Op::recompute:
      return WorkKind::recompute;
    case Op::backward_input:
    case Op::backward_weight:
      return WorkKind::backward;
    case Op::optimizer:
      return WorkKind::optimizer;
    case Op::gather_parameters:
      return WorkKind::gather;
    case Op::reduce_gradients:
    case Op::sync_gradients:
      return WorkKind::reduce;
    case Op::send:
    case Op::receive:
    case Op::send_copy:
    case Op::receive_copy:
      return WorkKind::transfer;
    case Op::step_gate:
      return WorkKind::gate;
    default:
      return WorkKind::tensor;
  }
}

// Tokens per step of a rank and of the first rank in its stage. They may differ if the batch is not evenly
// divisible.
struct Tokens {
  double of_rank = 0, of_first_rank = 0;
};
Tokens tokens_of(const Plan& plan, const PlanLocation& location) {
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(location.pipeline)];
  const Stage& stage = pipeline.stages[static_cast<std::size_t>(location.stage)];
  const Side side{static_cast<int>(stage.devices.size()), stage.chunks.back().runs.back().strategy};
  Tokens tokens;
  for (const int sequences : pipeline.microbatches) {
    tokens.of_rank += static_cast<double>(
        share_of(side, location.index, sequences, plan.sequence_length, false).num_tokens());
    tokens.of_first_rank +=
        static_cast<double>(share_of(side, 0, sequences, plan.sequence_length, false).num_tokens());
  }
  return tokens;
}

}  // namespace

int group_of(const Plan& plan, const PlanLocation& location) {
  int group = location.stage;
  for (int p = 0; p < location.pipeline; ++p)
    group += static_cast<int>(plan.pipelines[static_cast<std::size_t>(p)].stages.size());
  return group;
}

double bytes_on_the_wire(const Instruction& instruction, const Group* group) {
  const auto bytes = static_cast<double>(instruction.bytes);
  if (group == nullptr) return bytes;
  const auto size = static_cast<double>(std::max<std::size_t>(1, group->members.size()));
  // A ring all-reduce sends each element twice, and a reduce-scatter sends it once.
  const bool sends_twice = instruction.op == Op::all_reduce || instruction.op == Op::sync_gradients ||
                           (instruction.op == Op::reduce_gradients && group->role != Role::shard);
  return bytes * (size - 1) / size * (sends_twice ? 2 : 1);
}

BlockRole role_of(const ModelSpec& model, int block) {
  switch (block_kind(model, block)) {
    case BlockKind::embedding:
      return BlockRole::embedding;
    case BlockKind::head:
      return BlockRole::head;
    default:
      return BlockRole::layer;
  }
}

bool is_computing(Op op) {
  return op == Op::forward || op == Op::recompute || op == Op::backward_input || op == Op::backward_weight;
}

std::vector<int> computing_spans(const Program& program, const ModelSpec& model) {
  std::vector<int> span_starts;
  for (const Instruction& instruction : program.instructions) {
    const int index = static_cast<int>(span_starts.size());
    span_starts.push_back(is_computing(instruction.op) ? index : -1);
    if (index == 0 || span_starts.back() < 0 || span_starts[static_cast<std::size_t>(index - 1)] < 0)
      continue;
    const int span_start = span_starts[static_cast<std::size_t>(index - 1)];
    const Instruction& previous_instruction = program.instructions[static_cast<std::size_t>(index - 1)];
    const auto waits = program.waits(instruction);
    const bool waits_for_others = std::any_of(waits.begin(), waits.end(), [&](int wait) {
      return !is_computing(program.instructions[static_cast<std::size_t>(wait)].op);
    });
    const bool is_same_kind = kind_of(instruction) == kind_of(previous_instruction) &&
                              instruction.microbatch == previous_instruction.microbatch &&
                              role_of(model, instruction.block) == role_of(model, previous_instruction.block);
    if (is_same_kind && !waits_for_others) span_starts.back() = span_start;
  }
  return span_starts;
}

StepMeter::StepMeter(const Program& program, const Plan& plan, const ModelSpec& model,
                     std::vector<double> predicted) {
  sum_.rank = program.device, sum_.group = group_of(plan, program.location);
  const Tokens tokens = tokens_of(plan, program.location);
  if (tokens.of_rank > 0 && tokens.of_first_rank > 0) token_ratio_ = tokens.of_rank / tokens.of_first_rank;
  // Causal attention computes half of the score matrix.
  const double base_flops = model_flops_per_token(model, 1),
               flops_per_position = model_flops_per_token(model, 2) - base_flops;
  linear_ = (base_flops - flops_per_position) * tokens.of_rank;
  attention_ = flops_per_position * (model.is_causal ? 0.5 : 1);
  predicted.resize(program.instructions.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const InstructionInfo info = info_of(program, plan, model, program.instructions[i], predicted[i]);
    infos_.push_back(info);
    double& largest = largest_[static_cast<std::size_t>(info.channel)];
    if (info.is_message) largest = std::max(largest, info.bytes);
  }
}

StepMeter::InstructionInfo StepMeter::info_of(const Program& program, const Plan& plan,
                                              const ModelSpec& model, const Instruction& instruction,
                                              double predicted) const {
  InstructionInfo info{.is_counted = true, .kind = kind_of(instruction), .predicted = predicted};
  info.is_compute = is_computing(instruction.op);
  if (info.is_compute && instruction.block >= 0) info.role = role_of(model, instruction.block);
  if (instruction.op == Op::send || instruction.op == Op::receive) {
    // Messages to other pipelines or to non-adjacent stages do not belong to a channel.
    const PlanLocation peer = location_of(plan, instruction.peer);
    const int stage_distance = peer.stage - program.location.stage;
    info.is_message =
        peer.pipeline == program.location.pipeline && (stage_distance == 1 || stage_distance == -1);
    info.channel = stage_distance > 0 ? Channel::next : Channel::previous;
  } else if (instruction.group >= 0 && instruction.op != Op::step_gate) {
    const Role role = program.groups[static_cast<std::size_t>(instruction.group)].role;
    info.is_message = role != Role::world;
    info.channel = role == Role::tensor || role == Role::context || role == Role::expert ? Channel::tensor
                                                                                         : Channel::data;
  }
  const Group* const group =
      instruction.group < 0 ? nullptr : &program.groups[static_cast<std::size_t>(instruction.group)];
  info.bytes = info.is_message ? bytes_on_the_wire(instruction, group) : 0;
  info.is_message = info.is_message && info.bytes > 0;
  return info;
}

std::vector<bool> StepMeter::messages() const {
  std::vector<bool> result;
  for (const InstructionInfo& info : infos_) result.push_back(info.is_message);
  return result;
}

void StepMeter::observe(const MeasuredStep& step, const std::vector<InstructionTime>& times) {
  ++num_steps_;
  sum_.seconds += step.seconds, sum_.data_wait += step.data_wait;
  sum_.lengths.sequences += step.sequences, sum_.lengths.tokens += step.tokens;
  sum_.lengths.squares += step.squares;
  const bool is_timed = !times.empty();
  if (is_timed && num_timed_++ == 0) relative_work_ = 0;  // from now on, only timed steps contribute
  const double typical = linear_ + attention_ * step.expected_squares;
  if (is_timed || num_timed_ == 0)
    relative_work_ += typical > 0 ? (linear_ + attention_ * step.squares) / typical : 1;
  for (const InstructionTime& time : times) {
    const InstructionInfo& info = infos_[static_cast<std::size_t>(time.instruction)];
    const double seconds = std::max(0.0, time.end - time.start);
    WorkTime& work_time = sum_.kinds[static_cast<std::size_t>(info.kind)];
    work_time.seconds += seconds, ++work_time.count;
    if (!info.is_compute || info.predicted <= 0) continue;
    BlockTime& rate = sum_.rates[static_cast<std::size_t>(info.role)];
    rate.seconds += seconds, rate.predicted += info.predicted;
  }
  add_links(times);
}

void StepMeter::add_links(const std::vector<InstructionTime>& times) {
  std::array<double, kChannels> seconds_per_byte;
  seconds_per_byte.fill(std::numeric_limits<double>::infinity());
  for (const InstructionTime& time : times) {
    const InstructionInfo& info = infos_[static_cast<std::size_t>(time.instruction)];
    const auto channel = static_cast<std::size_t>(info.channel);
    if (!info.is_message || info.bytes < 0.5 * largest_[channel]) continue;
    seconds_per_byte[channel] =
        std::min(seconds_per_byte[channel], std::max(1e-9, time.end - time.start) / info.bytes);
  }
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (seconds_per_byte[c] == std::numeric_limits<double>::infinity()) continue;
    sum_.links[c].bytes += largest_[c], sum_.links[c].seconds += seconds_per_byte[c] * largest_[c];
    ++num_measured_[c];
  }
}

RankStep StepMeter::take() {
  RankStep mean = sum_;
  const double steps = num_steps_;
  const int num_measured = num_timed_ > 0 ? num_timed_ : num_steps_;
  mean.seconds /= steps, mean.data_wait /= steps, mean.relative_work = relative_work_ / num_measured;
  for (WorkTime& work_time : mean.kinds) work_time.seconds /= num_measured, work_time.count /= num_measured;
  for (const WorkKind kind : {WorkKind::forward, WorkKind::recompute, WorkKind::backward})
    mean.kinds[static_cast<std::size_t>(kind)].seconds /= token_ratio_;
  for (BlockTime& rate : mean.rates) rate.seconds /= num_measured, rate.predicted /= num_measured;
  for (std::size_t c = 0; c < kChannels; ++c)
    if (num_measured_[c] > 0)
      mean.links[c].bytes /= num_measured_[c], mean.links[c].seconds /= num_measured_[c];
  sum_ = RankStep{.rank = mean.rank, .group = mean.group};
  num_steps_ = num_timed_ = 0, num_measured_ = {}, relative_work_ = 0;
  return mean;
}

}  // namespace optimus
