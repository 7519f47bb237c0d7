// See flight_log.h.
#include "comm/flight_log.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/time_stamp.h"

namespace optimus {
namespace {

std::string_view state_text(FlightState state) {
  switch (state) {
    case FlightState::posted:
      return "in progress for";
    case FlightState::done:
      return "done in";
    case FlightState::failed:
      return "failed after";
  }
  return "";
}

}  // namespace

FlightLog::FlightLog(int rank, std::size_t capacity)
    : rank_(rank), capacity_(capacity), begin_time_(std::chrono::steady_clock::now()) {
  ensure(capacity > 0, "a flight log needs at least one entry");
  ring_.reserve(capacity);
}

Seconds FlightLog::now() const {
  return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time_).count());
}

std::int64_t FlightLog::post(std::string_view kind, std::string_view description, std::string_view group,
                             std::int64_t bytes) {
  const Seconds time = now();
  const std::lock_guard lock(mutex_);
  const auto ring_index = static_cast<std::size_t>(num_posted_) % capacity_;
  if (ring_index == ring_.size()) ring_.emplace_back();
  FlightEntry& entry = ring_[ring_index];
  entry.number = num_posted_, entry.bytes = bytes, entry.state = FlightState::posted;
  entry.begin_time = time, entry.seconds = Seconds(0);
  entry.operation.assign(kind).append(" of ").append(description);
  entry.group.assign(group);
  return num_posted_++;
}

void FlightLog::end(std::int64_t number, FlightState state) {
  const Seconds time = now();
  const std::lock_guard lock(mutex_);
  FlightEntry& entry = ring_[static_cast<std::size_t>(number) % capacity_];
  if (entry.number != number || entry.state != FlightState::posted) return;
  entry.state = state;
  entry.seconds = time - entry.begin_time;
}

std::vector<FlightEntry> FlightLog::entries() const {
  const Seconds time = now();
  std::vector<FlightEntry> result;
  {
    const std::lock_guard lock(mutex_);
    result = ring_;
  }
  for (FlightEntry& entry : result)
    if (entry.state == FlightState::posted) entry.seconds = time - entry.begin_time;
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return result;
}

std::string FlightLog::text() const {
  std::string result;
  const WallClock::time_point begin_time =
      WallClock::now() -
      std::chrono::duration_cast<WallClock::duration>(std::chrono::steady_clock::now() - begin_time_);
  for (const FlightEntry& entry : entries())
    result += fmt::format("{}rank {} #{}: {}, {}, {}: {} {:.6f} s\n",
                          time_stamp(begin_time + std::chrono::duration_cast<WallClock::duration>(
                                                      std::chrono::duration<double>(entry.begin_time.value))),
                          rank_, entry.number, entry.operation, entry.group,
                          optimus::text(Bytes(entry.bytes)), state_text(entry.state), entry.seconds.value);
  return result;
}

}  // namespace optimus
