// The heartbeat of a rank's working thread. It publishes the thread's current instruction to a watching
// thread, because a hung thread cannot report itself (run/rank_watch.h). It also publishes the last step that
// all ranks have completed.
#pragma once

#include <chrono>
#include <mutex>

#include "schedule/program.h"

namespace optimus {

// Written by the working thread, read by any thread.
class StepHeartbeat {
 public:
  struct Snapshot {
    bool is_waiting = true;  // whether the thread waits for other ranks or is between steps
    Op op = Op::forward;     // operation of the current instruction, if not waiting
    int block = 0;
    double seconds = 0;     // seconds since the instruction began
    double expected = 0;    // the longer of the predicted and the measured seconds
    double time_limit = 0;  // seconds after which the thread is considered hung
    std::int64_t step = 0;  // a recent step that all ranks have completed
  };

  void wait() {
    const std::lock_guard lock(mutex_);
    snapshot_ = {}, begin_time_ = Clock::now();
  }
  void begin_instruction(const Instruction& instruction, double expected, double time_limit) {
    const std::lock_guard lock(mutex_);
    snapshot_ = {false, instruction.op, instruction.block, 0, expected, time_limit},
    begin_time_ = Clock::now(), has_worked_ = true;
  }
  // Called when all ranks have reported that they completed the previous step.
  void set_completed_step(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
  }
  bool has_worked() const {
    const std::lock_guard lock(mutex_);
    return has_worked_;
  }
  Snapshot snapshot() const {
    const std::lock_guard lock(mutex_);
    Snapshot snapshot = snapshot_;
    snapshot.seconds = std::chrono::duration<double>(Clock::now() - begin_time_).count(),
    snapshot.step = step_;
    return snapshot;
  }

 private:
  using Clock = std::chrono::steady_clock;
  mutable std::mutex mutex_;
  Snapshot snapshot_;
  Clock::time_point begin_time_ = Clock::now();
  bool has_worked_ = false;
  std::int64_t step_ = 0;
};

}  // namespace optimus
