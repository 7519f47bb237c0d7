// How long each of a rank's own instructions may take before its thread counts as hung: many times what is predicted of it, and of
// what it took before. A slow device's instructions end, so what it took before says how slow it is: it is never taken for dead.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/step_beacon.h"

namespace optimus {

// Of the thread that works. Waits and collectives are others' business.
class InstructionPace {
 public:
  static bool is_own(Op op) {
    return op == Op::forward || op == Op::recompute || op == Op::backward_input ||
           op == Op::backward_weight || op == Op::optimizer;
  }
  // predicted: seconds of each instruction; may be empty. A null beacon: nobody looks.
  InstructionPace(StepBeacon* beacon, std::size_t num_instructions, std::vector<double> predicted)
      : beacon_(beacon), usual_(std::move(predicted)), is_seen_(num_instructions) {
    usual_.resize(num_instructions);
  }

  void wait() const {
    if (beacon_ != nullptr) beacon_->wait();
  }
  void begin(std::size_t index, const Instruction& at) {
    if (beacon_ == nullptr || !is_own(at.op)) return;
    began_ = std::chrono::steady_clock::now();
    beacon_->work(at, usual_[index], allowed(index));
  }
  void end(std::size_t index, const Instruction& at) {
    if (beacon_ == nullptr || !is_own(at.op)) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    usual_[index] = std::max(usual_[index], seconds), is_seen_[index] = true;
    beacon_->wait();
  }

  double allowed(std::size_t index) const {
    // A tenth is the most that published stragglers are slowed to; a thread that the system lets wait for a second is not hung. What
    // was never run yet may have libraries to load and kernels to choose, and its prediction may be of another machine.
    constexpr double kTimes = 20, kLeast = 2, kFirstTimes = 100, kFirstLeast = 30;
    return is_seen_[index] ? std::max(kLeast, kTimes * usual_[index])
                           : std::max(kFirstLeast, kFirstTimes * usual_[index]);
  }

 private:
  StepBeacon* const beacon_;
  std::vector<double> usual_;  // [instruction]
  std::vector<bool> is_seen_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace optimus
