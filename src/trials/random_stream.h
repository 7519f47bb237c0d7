// RandomStream: a stream of random numbers with one key, for generating simulated runs.
#pragma once

#include <cmath>
#include <numbers>

#include "base/random.h"

namespace optimus {

class RandomStream {
 public:
  explicit RandomStream(RandomKey key) : key_(key) {}
  double uniform() { return random_uniform(key_, state_++); }
  double between(double low, double high) { return low + (high - low) * uniform(); }
  double log_uniform(double low, double high) { return low * std::pow(high / low, uniform()); }
  std::size_t below(std::size_t bound) {
    return static_cast<std::size_t>(random_below(key_, state_++, bound));
  }
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  RandomKey key_;
  std::uint64_t state_ = 0;
};

}  // namespace optimus
