// The loss of many targets as a sum, which ranks and passes add up. Plain data.
#pragma once

#include <cstdint>

namespace optimus {

struct LossSum {
  double sum = 0;
  std::int64_t count = 0;  // number of targets
  double mean() const { return sum / static_cast<double>(count); }
};

}  // namespace optimus
