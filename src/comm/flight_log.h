// Records the last operations of a rank, like PyTorch's flight recorder: which operations were started,
// whether they ended, and how long they took. The log is shown only when a run fails. Its entries form a ring
// buffer whose strings are reused, so logging does not allocate memory during training. Any thread may read
// while the rank's own thread writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace optimus {

enum class FlightState : std::uint8_t { posted, done, failed };

struct FlightEntry {
  std::int64_t number = 0;  // index of the operation on this rank, from 0
  std::string operation, group;
  std::int64_t bytes = 0;
  FlightState state = FlightState::posted;
  Seconds begin_time;  // since the creation of the log
  Seconds seconds;     // duration so far
};

class FlightLog {
 public:
  explicit FlightLog(int rank, std::size_t capacity = 64);

  // Returns the operation's number. Example: `kind` "all_reduce", `description` "gradients of block 3".
  std::int64_t post(std::string_view kind, std::string_view description, std::string_view group,
                    std::int64_t bytes);
  // Has no effect if the operation is no longer in the log or has already ended.
  void end(std::int64_t number, FlightState state);

  std::vector<FlightEntry> entries() const;  // oldest first
  std::string text() const;                  // one line per operation, with its start time

 private:
  Seconds now() const;

  const int rank_;
  const std::size_t capacity_;
  const std::chrono::steady_clock::time_point begin_time_;
  mutable std::mutex mutex_;
  std::int64_t num_posted_ = 0;
  std::vector<FlightEntry> ring_;
};

}  // namespace optimus
