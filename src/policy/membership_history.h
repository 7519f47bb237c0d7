// MembershipHistory: when ranks were lost and when ranks joined, as policies see it in trials and in a run. A
// run keeps it across membership changes, beyond the life of a controller. Plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "policy/situation.h"

namespace optimus {

// The times of events of one kind, in order; seconds.
class LastHour {
 public:
  void add(double time) { times_.push_back(time), last_time_ = time; }
  int count(double now) {
    while (oldest_ < times_.size() && times_[oldest_] < now - kHour) ++oldest_;
    return static_cast<int>(times_.size() - oldest_);
  }
  double seconds_since_last(double now) const { return now - last_time_; }
  std::size_t total() const { return times_.size(); }

  static constexpr double kHour = 3600;

 private:
  std::vector<double> times_;
  std::size_t oldest_ = 0;
  double last_time_ = -1e9;
};

struct MembershipHistory {
  std::optional<double> begin_time{};  // start of the run
  LastHour losses{}, arrivals{};
  double device_seconds = 0, counted_until = 0;  // of all devices, until their number last changed

  // Call it before the number of devices changes.
  void add_time(double now, int num_devices) {
    device_seconds = device_seconds_at(now, num_devices), counted_until = now;
  }
  double device_seconds_at(double now, int num_devices) const {
    return device_seconds + num_devices * (now - std::max(counted_until, begin_time.value_or(now)));
  }
};

// The expected time between two losses of one device, and the number of losses that this expectation weighs.
// The default is 50,000 hours, the rate of Llama 3's training on 16,384 GPUs. It says little about spot
// machines, so its weight is small: the first loss outweighs it.
struct ExpectedLifetime {
  double seconds = 50'000 * LastHour::kHour, weight = 1e-4;
};

// Writes the fields of the situation that describe losses and arrivals. The expected lifetime acts as a prior
// of five hours of one device: a single loss in a run's first minute does not yield a rate of one loss per
// minute.
inline void describe_membership(MembershipHistory& history, double now, int num_devices,
                                const ExpectedLifetime& expected, Situation& situation) {
  situation.elapsed_seconds = now - history.begin_time.value_or(now);
  situation.since_loss = history.losses.seconds_since_last(now),
  situation.since_arrival = history.arrivals.seconds_since_last(now);
  situation.losses_last_hour = history.losses.count(now);
  situation.arrivals_last_hour = history.arrivals.count(now);
  situation.losses_per_device_second =
      (expected.weight + static_cast<double>(history.losses.total())) /
      (expected.weight * expected.seconds + history.device_seconds_at(now, num_devices));
}

}  // namespace optimus
