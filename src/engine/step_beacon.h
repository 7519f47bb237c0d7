// Where a rank's work is, for another thread to see: a thread that hangs cannot say so itself (run/rank_watch.h); and how far its training
// is, which it gets to only together with all others.
#pragma once

#include <chrono>
#include <mutex>

#include "schedule/program.h"

namespace optimus {

// One thread works, any thread looks.
class StepBeacon {
 public:
  struct Sight {
    bool is_waiting = true;  // for others, or between steps
    Op op = Op::forward;     // else
    int block = 0;
    double seconds = 0;     // since it began
    double usual = 0;       // as predicted, or as seen, whichever is longer
    double allowed = 0;     // longer than this, and it hangs
    std::int64_t step = 0;  // behind which all others stood, too, not long ago
  };

  void wait() {
    const std::lock_guard lock(mutex_);
    sight_ = {}, since_ = Clock::now();
  }
  void work(const Instruction& at, double usual, double allowed) {
    const std::lock_guard lock(mutex_);
    sight_ = {false, at.op, at.block, 0, usual, allowed}, since_ = Clock::now(), has_worked_ = true;
  }
  // When all ranks have said that they are behind the step before.
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
