// Who was lost and who came, as policies are told of it: in trials, and in a run, where it outlives whoever decides. Plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "adapt/decide.h"

namespace optimus {

// Instants of one kind, in order; seconds.
class LastHour {
 public:
  void add(double at) { instants_.push_back(at), last_ = at; }
  int count(double now) {
    while (first_ < instants_.size() && instants_[first_] < now - kHour) ++first_;
    return static_cast<int>(instants_.size() - first_);
  }
  double since(double now) const { return now - last_; }
  std::size_t total() const { return instants_.size(); }

  static constexpr double kHour = 3600;

 private:
  std::vector<double> instants_;
  std::size_t first_ = 0;
  double last_ = -1e9;
};

struct Comings {
  std::optional<double> began{};  // the run
  LastHour losses{}, arrivals{};
  double device_seconds = 0, counted_until = 0;  // of all devices, until the last change of their number

  // Before their number changes.
  void add_time(double now, int num_devices) {
    device_seconds = device_seconds_at(now, num_devices), counted_until = now;
  }
  double device_seconds_at(double now, int num_devices) const {
    return device_seconds + num_devices * (now - std::max(counted_until, began.value_or(now)));
  }
};

// Seconds of a device between two losses, as was expected before any, and how many losses that is worth. Where nobody says: 50,000 hours, as
// Llama 3's training had on 16,384 GPUs, which says next to nothing about spot machines: the first loss outweighs it.
struct ExpectedLife {
  double seconds = 50'000 * LastHour::kHour, weight = 1e-4;
};

// What is known of them now. One loss in a run's first minute is no loss a minute: five hours of a device are added to those that were seen.
inline void tell(Comings& comings, double now, int num_devices, const ExpectedLife& expected,
                 Situation& situation) {
  situation.now = now - comings.began.value_or(now);
  situation.since_loss = comings.losses.since(now), situation.since_arrival = comings.arrivals.since(now);
  situation.losses_last_hour = comings.losses.count(now);
  situation.arrivals_last_hour = comings.arrivals.count(now);
  situation.losses_per_device_second =
      (expected.weight + static_cast<double>(comings.losses.total())) /
      (expected.weight * expected.seconds + comings.device_seconds_at(now, num_devices));
}

}  // namespace optimus
