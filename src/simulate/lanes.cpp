// See lanes.h.
#include "simulate/lanes.h"

#include <algorithm>
#include <array>
#include <utility>

namespace optimus {

TimeSplit& TimeSplit::operator+=(const TimeSplit& other) {
  compute += other.compute, tensor += other.tensor, data += other.data, pipeline += other.pipeline;
  bubble += other.bubble, optimizer += other.optimizer, host += other.host;
  return *this;
}

TimeSplit operator*(TimeSplit split, double factor) {
  for (double* part : {&split.compute, &split.tensor, &split.data, &split.pipeline, &split.bubble,
                       &split.optimizer, &split.host})
    *part *= factor;
  return split;
}

namespace {

constexpr std::size_t kLanes = 6;

// Executes the instructions of a program in list order. Records when each lane becomes free and which lanes
// compute has waited for.
class LaneRunner {
 public:
  LaneRunner(const PricedProgram& program, const Software& software, const Constants& constants,
             bool is_recorded)
      : is_recorded_(is_recorded),
        program_(program.program()),
        seconds_(program.price(constants)),
        constants_(constants),
        end_seconds_(program_.instructions.size()) {
    is_overlapped_[static_cast<std::size_t>(Lane::tensor)] = software.runs_programs;
    is_overlapped_[static_cast<std::size_t>(Lane::gather)] = software.overlaps_gather;
    is_overlapped_[static_cast<std::size_t>(Lane::reduce)] = software.overlaps_reduce;
    is_overlapped_[static_cast<std::size_t>(Lane::transfer)] = software.overlaps_reduce;
    is_overlapped_[static_cast<std::size_t>(Lane::host)] = true;
  }

  void run(std::size_t i) {
    const Instruction& instruction = program_.instructions[i];
    // All other messages are assumed to arrive immediately.
    if (instruction.lane == Lane::transfer && instruction.op != Op::receive_copy) return;
    const bool is_of_gradients = instruction.lane == Lane::reduce || instruction.op == Op::receive_copy;
    if (is_of_gradients && instruction.slot >= 0 &&
        !is_overlapped_[static_cast<std::size_t>(instruction.lane)]) {
      // Reductions that do not overlap with the backward pass are executed after the last slot, because the
      // preceding stages do not wait for them.
      deferred_instructions_.push_back(static_cast<int>(i));
      return;
    }
    const bool is_compute =
        instruction.lane == Lane::compute || !is_overlapped_[static_cast<std::size_t>(instruction.lane)];
    double& lane_free = free_[is_compute ? 0 : static_cast<std::size_t>(instruction.lane)];
    double start = lane_free;
    Lane cause = Lane::compute;
    for (const int wait : program_.waits(instruction)) {
      const double end = end_seconds_[static_cast<std::size_t>(wait)];
      if (end > start) start = end, cause = program_.instructions[static_cast<std::size_t>(wait)].lane;
    }
    if (is_compute) add_wait(cause, start - lane_free);
    end_seconds_[i] = lane_free = start + seconds_[i];
    last_end_ = std::max(last_end_, end_seconds_[i]);
    if (is_recorded_)
      recorded_times_.push_back({static_cast<int>(i), start - begin_, end_seconds_[i] - begin_});
    if (is_compute)
      add_work(instruction, seconds_[i]);
    else if (instruction.lane == Lane::gather || is_of_gradients)
      concurrent_communication_ += seconds_[i];
    if (instruction.lane == Lane::tensor) tensor_end_ = std::max(tensor_end_, end_seconds_[i]);
  }

  // Returns the time from the last call until the compute and tensor lanes are idle. It includes the slowdown
  // of compute by concurrent communication.
  SlotTime take_slot() {
    const double end = std::max(free_[0], tensor_end_);
    split_.tensor += end - free_[0];
    free_[0] = end;
    // The slowdown delays all later instructions.
    const double slowdown =
        std::min(concurrent_communication_ * constants_.interference, split_.compute * 0.5);
    split_.compute += slowdown;
    free_[0] += slowdown;
    const SlotTime slot{free_[0] - begin_, split_};
    begin_ = free_[0], split_ = {}, concurrent_communication_ = 0;
    last_end_ = std::max(last_end_, free_[0]);
    return slot;
  }

  // Returns the time from the last call until all lanes are idle and all deferred instructions are complete.
  SlotTime take_remainder(bool counts_as_data) {
    last_end_ = std::max(last_end_, free_[0]);
    for (const int i : std::exchange(deferred_instructions_, {})) {
      const double seconds = seconds_[static_cast<std::size_t>(i)];
      if (is_recorded_) recorded_times_.push_back({i, last_end_ - begin_, last_end_ + seconds - begin_});
      last_end_ += seconds;
    }
    for (double& lane_free : free_) lane_free = last_end_;
    const double remainder = last_end_ - begin_ - split_.total();
    (counts_as_data ? split_.data : split_.host) += std::max(0.0, remainder);
    const SlotTime slot{last_end_ - begin_, split_};
    begin_ = last_end_, split_ = {}, concurrent_communication_ = 0;
    return slot;
  }

  // Returns the instructions since the last call, with times relative to the start of their slot.
  std::vector<InstructionTime> take_instructions() { return std::exchange(recorded_times_, {}); }

 private:
  void add_wait(Lane cause, double seconds) {
    if (cause == Lane::tensor)
      split_.tensor += seconds;
    else if (cause == Lane::host)
      split_.host += seconds;
    else
      split_.data += seconds;
  }
  void add_work(const Instruction& instruction, double seconds) {
    if (instruction.op == Op::optimizer)
      split_.optimizer += seconds;
    else if (instruction.lane == Lane::tensor)
      split_.tensor += seconds;
    else if (instruction.lane == Lane::compute)
      split_.compute += seconds;
    else
      split_.data += seconds;
  }

  const bool is_recorded_;
  const Program& program_;
  const std::vector<double> seconds_;
  const Constants& constants_;
  std::vector<double> end_seconds_;
  std::array<bool, kLanes> is_overlapped_{};
  std::array<double, kLanes> free_{};
  double begin_ = 0, last_end_ = 0, tensor_end_ = 0, concurrent_communication_ = 0;
  std::vector<int> deferred_instructions_;  // reductions that run after the last slot
  std::vector<InstructionTime> recorded_times_;
  TimeSplit split_;
};

void add_host(SlotTime& slot, double seconds) { slot.seconds += seconds, slot.split.host += seconds; }

// Stores the time of a slot in the list of StageTimes to which it belongs. The first micro-batch provides
// first_forward and backward, the last one provides forward and last_backward.
void store_slot_time(StageTimes& times, const Slot& slot, int last_microbatch, const SlotTime& time) {
  const auto chunk = static_cast<std::size_t>(slot.chunk);
  const bool is_first = slot.microbatch == 0, is_last = slot.microbatch == last_microbatch;
  const auto append_time = [&](std::vector<SlotTime>& list, bool matches) {
    if (matches) list[chunk] = time;
  };
  switch (slot.work) {
    case Work::forward:
      append_time(times.first_forward, is_first), append_time(times.forward, is_last);
      break;
    case Work::backward:
    case Work::backward_input:
      append_time(times.backward, is_first), append_time(times.last_backward, is_last);
      break;
    case Work::backward_weight:
      append_time(times.weight, is_first), append_time(times.last_weight, is_last);
      break;
    case Work::update:
      append_time(times.weight, is_first), append_time(times.last_weight, is_last);
      break;
  }
}

struct LaneRun {
  StageTimes times;
  LaneTrace trace;
};

LaneRun run_lanes(const PricedProgram& priced, const Order& order, const Software& software,
                  const Constants& constants, bool is_recorded) {
  const Program& program = priced.program();
  LaneRunner lanes(priced, software, constants, is_recorded);
  int num_chunks = 1, last_microbatch = 0;
  for (const Slot& slot : order)
    num_chunks = std::max(num_chunks, slot.chunk + 1),
    last_microbatch = std::max(last_microbatch, slot.microbatch);
  LaneRun result;
  StageTimes& times = result.times;
  for (auto* list : {&times.first_forward, &times.forward, &times.backward, &times.last_backward,
                     &times.weight, &times.last_weight})
    list->resize(static_cast<std::size_t>(num_chunks));
  std::size_t i = 0;
  const std::size_t num_instructions = program.instructions.size();
  while (i < num_instructions && program.instructions[i].slot < 0) lanes.run(i++);
  times.before_first_slot = lanes.take_remainder(false);
  result.trace.before_first_slot = lanes.take_instructions();
  const double host = priced.is_measured() ? 0 : constants.slot_seconds * constants.host_residual;
  for (int slot = 0; slot < std::ssize(order); ++slot) {
    while (i < num_instructions && program.instructions[i].slot == slot) lanes.run(i++);
    SlotTime time = lanes.take_slot();
    result.trace.slots.push_back(lanes.take_instructions());
    if (host > 0) add_host(time, host);
    store_slot_time(times, order[static_cast<std::size_t>(slot)], last_microbatch, time);
  }
  while (i < num_instructions && program.instructions[i].op != Op::step_gate) lanes.run(i++);
  times.before_gate = lanes.take_remainder(true);
  result.trace.before_gate = lanes.take_instructions();
  while (i < num_instructions) lanes.run(i++);
  times.after_gate = lanes.take_remainder(true);
  result.trace.after_gate = lanes.take_instructions();
  // Gathers of updated weights overlap with the forward passes of the next step.
  if (software.overlaps_gather) {
    double hidden_seconds = 0;
    for (const SlotTime& forward : times.forward) hidden_seconds += forward.seconds;
    hidden_seconds = std::min(hidden_seconds, times.after_gate.split.data);
    times.after_gate.seconds -= hidden_seconds * (1 - constants.interference);
    times.after_gate.split.data -= hidden_seconds * (1 - constants.interference);
  }
  return result;
}

}  // namespace

StageTimes simulate_lanes(const PricedProgram& priced, const Order& order, const Software& software,
                          const Constants& constants) {
  return run_lanes(priced, order, software, constants, false).times;
}

LaneTrace trace_lanes(const PricedProgram& priced, const Order& order, const Software& software,
                      const Constants& constants) {
  return run_lanes(priced, order, software, constants, true).trace;
}

}  // namespace optimus
