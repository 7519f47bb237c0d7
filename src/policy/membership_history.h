// MembershipHistory: the times at which ranks were lost and joined. Policies use it in simulated and in real
// runs. It is kept across membership changes, so it outlives each controller. Plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "policy/situation.h"

namespace optimus {

// Counts the events of the last hour. Times are in seconds and are added in ascending order.
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
  // Device time summed over all devices until `counted_until`, when the number of devices last changed.
  double device_seconds = 0, counted_until = 0;

  // Adds the device time since the last call. Must be called with the old number of devices whenever it
  // changes.
  void add_time(double now, int num_devices) {
    device_seconds = device_seconds_at(now, num_devices), counted_until = now;
  }
  double device_seconds_at(double now, int num_devices) const {
    return device_seconds + num_devices * (now - std::max(counted_until, begin_time.value_or(now)));
  }
};

// The expected time between two losses of one device, and the weight of this prior as a number of losses. The
// default of 50,000 hours is from the training of Llama 3 on 16,384 GPUs. Spot machines are lost far more
// often, so the weight is small and the first observed loss outweighs it.
struct ExpectedLifetime {
  double seconds = 50'000 * LastHour::kHour, weight = 1e-4;
};

// Sets the fields of `situation` that describe losses and arrivals. `expected` acts as a prior of, by
// default, five device hours with 1e-4 losses. Without it, a single loss in the first minute of a run would
// give a rate of one loss per minute.
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
