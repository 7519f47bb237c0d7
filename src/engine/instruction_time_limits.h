// The time that an instruction may take before the thread that executes it is considered hung. The limit is a
// multiple of the instruction's predicted or previously measured time, whichever is longer. The instructions
// of a slow device still end, and their measured times raise the limit, so a slow device is never declared
// dead.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/step_heartbeat.h"

namespace optimus {

// Used by the working thread only. Waits and collectives are not limited here.
class InstructionTimeLimits {
 public:
  static bool is_limited(Op op) {
    return op == Op::forward || op == Op::recompute || op == Op::backward_input ||
           op == Op::backward_weight || op == Op::optimizer;
  }
  // `predicted` is the expected duration of each instruction in seconds, and may be empty. A null heartbeat
  // disables monitoring.
  InstructionTimeLimits(StepHeartbeat* step_heartbeat, std::size_t num_instructions,
                        std::vector<double> predicted)
      : step_heartbeat_(step_heartbeat), expected_(std::move(predicted)), has_run_(num_instructions) {
    expected_.resize(num_instructions);
  }

  void wait() const {
    if (step_heartbeat_ != nullptr) step_heartbeat_->wait();
  }
  void begin(std::size_t index, const Instruction& instruction) {
    if (step_heartbeat_ == nullptr || !is_limited(instruction.op)) return;
    begin_time_ = std::chrono::steady_clock::now();
    step_heartbeat_->begin_instruction(instruction, expected_[index], limit_of(index));
  }
  void end(std::size_t index, const Instruction& instruction) {
    if (step_heartbeat_ == nullptr || !is_limited(instruction.op)) return;
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time_).count();
    expected_[index] = std::max(expected_[index], seconds), has_run_[index] = true;
    step_heartbeat_->wait();
  }

  double limit_of(std::size_t index) const {
    // In published measurements, stragglers run at no less than a tenth of normal speed. A thread that the
    // operating system does not schedule for a second is not hung. The first execution of an instruction may
    // load libraries and select kernels, and its prediction may be for a different machine.
    constexpr double kSlowdownFactor = 20, kMinSeconds = 2, kFirstSlowdownFactor = 100, kFirstMinSeconds = 30;
    return has_run_[index] ? std::max(kMinSeconds, kSlowdownFactor * expected_[index])
                           : std::max(kFirstMinSeconds, kFirstSlowdownFactor * expected_[index]);
  }

 private:
  StepHeartbeat* const step_heartbeat_;
  std::vector<double> expected_;  // [instruction]
  std::vector<bool> has_run_;
  std::chrono::steady_clock::time_point begin_time_;
};

}  // namespace optimus
