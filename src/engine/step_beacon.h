// The heartbeat of a rank's working thread: publishes its current instruction to a watching thread, since a
// hung thread cannot report itself (run/rank_watch.h), and the last step that all ranks have completed.
#pragma once

#include <chrono>
#include <mutex>

#include "schedule/program.h"

namespace optimus {

// Written by the working thread, read by any thread.
class StepBeacon {
 public:
  struct Sight {
    bool is_waiting = true;  // for other ranks, or between steps
    Op op = Op::forward;     // the current instruction, if not waiting
    int block = 0;
    double seconds = 0;     // since the instruction began
    double usual = 0;       // the longer of the predicted and the measured time
    double allowed = 0;     // the limit after which the thread counts as hung
    std::int64_t step = 0;  // a recent step that all other ranks had also completed
  };

  void wait() {
    const std::lock_guard lock(mutex_);
    sight_ = {}, since_ = Clock::now();
  }
  void work(const Instruction& at, double usual, double allowed) {
    const std::lock_guard lock(mutex_);
    sight_ = {false, at.op, at.block, 0, usual, allowed}, since_ = Clock::now(), has_worked_ = true;
  }
  // Called when all ranks have reported that they completed the previous step.
  void stepped(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
  }
  bool has_worked() const {
    const std::lock_guard lock(mutex_);
    return has_worked_;
  }
  Sight look() const {
    const std::lock_guard lock(mutex_);
    Sight sight = sight_;
    sight.seconds = std::chrono::duration<double>(Clock::now() - since_).count(), sight.step = step_;
    return sight;
  }

 private:
  using Clock = std::chrono::steady_clock;
  mutable std::mutex mutex_;
  Sight sight_;
  Clock::time_point since_ = Clock::now();
  bool has_worked_ = false;
  std::int64_t step_ = 0;
};

}  // namespace optimus
