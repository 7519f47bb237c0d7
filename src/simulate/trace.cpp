// Computes the times of single instructions in a step. Each slot of every micro-batch is filled with the
// instructions of the corresponding slot of the short program (simulate/lanes.h).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "simulate/instruction_name.h"
#include "simulate/simulate.h"

namespace optimus {
namespace {

// The slot of the short order whose times represent a slot of the whole order (see store_slot_time() in
// simulate/lanes.cpp), or -1 if there is none.
int representative_slot(const Slot& slot, int last_microbatch, const Order& order) {
  int last = 0;
  for (const Slot& known_slot : order) last = std::max(last, known_slot.microbatch);
  const bool is_forward = slot.work == Work::forward;
  const bool is_own_kind = is_forward ? slot.microbatch == 0 : slot.microbatch == last_microbatch;
  const int required_microbatch = is_own_kind == is_forward ? 0 : last;
  for (int i = 0; i < std::ssize(order); ++i) {
    const Slot& known_slot = order[static_cast<std::size_t>(i)];
    if (known_slot.work == slot.work && known_slot.chunk == slot.chunk &&
        known_slot.microbatch == required_microbatch)
      return i;
  }
  return -1;
}

}  // namespace

void StepSimulator::trace_stage(const StepTimes& step, int p, int s, const LaneTrace& lanes,
                                const Constants& constants, std::vector<TracedInstruction>& result) const {
  const SimulatedPipeline& simulated_pipeline = pipelines_[static_cast<std::size_t>(p)];
  const StageClass& stage_class =
      classes_[static_cast<std::size_t>(simulated_pipeline.classes[static_cast<std::size_t>(s)])];
  const PipelineTimes& times = step.pipelines[static_cast<std::size_t>(p)];
  const Program& program = stage_class.program->program();
  // Stages of one class have the same pattern, but their blocks have different indices.
  const Stage& stage = setup_.plan.pipelines[static_cast<std::size_t>(p)].stages[static_cast<std::size_t>(s)];
  const auto with_block_of_stage = [&](Instruction at) {
    if (at.block < 0 || at.chunk < 0) return at;
    const auto chunk = static_cast<std::size_t>(at.chunk);
    at.block += stage.chunks[chunk].first_block() - stage_class.first_blocks[chunk];
    return at;
  };
  // [lane]: time at which the lane becomes free. Communication that exceeds its slot delays the communication
  // of the next slot.
  std::array<double, 6> lane_free{};
  const auto append_span = [&](const InstructionTime& time, double begin, double scale, int microbatch) {
    const Instruction at =
        with_block_of_stage(program.instructions[static_cast<std::size_t>(time.instruction)]);
    double& lane = lane_free[static_cast<std::size_t>(at.lane)];
    const double start = std::max(lane, begin + time.start * scale), length = (time.end - time.start) * scale;
    lane = start + length;
    if (length > 0)
      result.push_back({p, s, at.lane, instruction_name(at, setup_.model, microbatch),
                        instruction_kind(at, setup_.model), start, lane});
  };
  for (const InstructionTime& time : lanes.before_first_slot) append_span(time, 0, 1, -1);
  const Order& order = simulated_pipeline.orders[static_cast<std::size_t>(s)];
  const LinkCost links(constants);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const int example = representative_slot(order[i], static_cast<int>(simulated_pipeline.sizes.size()) - 1,
                                            stage_class.order);
    if (example < 0) continue;
    const SlotSpan span = times.slots[static_cast<std::size_t>(s)][i];
    const double scale = simulated_pipeline.sizes[static_cast<std::size_t>(order[i].microbatch)];
    for (const InstructionTime& time : lanes.slots[static_cast<std::size_t>(example)])
      append_span(time, span.start, scale, order[i].microbatch);
    const bool is_forward = order[i].work == Work::forward;
    const bool sends = is_forward || order[i].work == Work::backward || order[i].work == Work::backward_input;
    const Link& link = (is_forward ? simulated_pipeline.next_links
                                   : simulated_pipeline.previous_links)[static_cast<std::size_t>(s)];
    const double message_seconds =
        sends
            ? links.message_seconds(link, is_forward ? stage_class.forward_bytes : stage_class.backward_bytes)
            : 0;
    if (message_seconds <= 0 || simulated_pipeline.classes.size() == 1) continue;
    double& lane = lane_free[static_cast<std::size_t>(Lane::transfer)];
    const double start = std::max(lane, span.end);
    lane = start + message_seconds;
    result.push_back(
        {p, s, Lane::transfer,
         fmt::format("send{}, micro-batch {}", is_forward ? "" : " gradient", order[i].microbatch),
         is_forward ? "send" : "send gradient", start, lane});
  }
  for (const InstructionTime& time : lanes.before_gate)
    append_span(time, times.stage_ends[static_cast<std::size_t>(s)], 1, -1);
  for (const InstructionTime& time : lanes.after_gate) append_span(time, step.gate, 1, -1);
}

std::vector<TracedInstruction> StepSimulator::instructions(const Constants& constants,
                                                           std::size_t max_count) const {
  const StepTimes step = simulate_times(constants, true);
  std::map<int, LaneTrace> lanes;  // [class]
  std::vector<TracedInstruction> result;
  for (int p = 0; p < std::ssize(pipelines_); ++p) {
    const SimulatedPipeline& simulated_pipeline = pipelines_[static_cast<std::size_t>(p)];
    for (int s = 0; s < std::ssize(simulated_pipeline.classes); ++s) {
      const int c = simulated_pipeline.classes[static_cast<std::size_t>(s)];
      const StageClass& stage_class = classes_[static_cast<std::size_t>(c)];
      if (!lanes.contains(c))
        lanes[c] = trace_lanes(*stage_class.program, stage_class.order, setup_.software, constants);
      const std::size_t size_before = result.size();
      trace_stage(step, p, s, lanes[c], constants, result);
      if (result.size() <= max_count) continue;
      result.resize(size_before);
      return result;
    }
  }
  return result;
}

}  // namespace optimus
