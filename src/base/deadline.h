// Deadline: the time at which a wait ends, with a name for messages. Callers pass it down to every blocking
// call, so that nested waits share one time limit.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include "base/units.h"

namespace optimus {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(Seconds seconds, std::string name) {
    const auto wait = std::chrono::duration<double>(seconds.value);
    return {Clock::now() + std::chrono::duration_cast<Clock::duration>(wait), std::move(name)};
  }

  const std::string& name() const { return name_; }
  bool has_passed() const { return Clock::now() >= end_; }
  // The remaining time, or 0 if the deadline has passed.
  Seconds remaining() const {
    return Seconds(std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count()));
  }
  Clock::time_point end() const { return end_; }

 private:
  Deadline(Clock::time_point end, std::string name) : end_(end), name_(std::move(name)) {}
  Clock::time_point end_;
  std::string name_;
};

}  // namespace optimus
