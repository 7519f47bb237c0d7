// The loss of many target tokens as a sum, so that the sums of ranks and passes can be added. Plain data.
#pragma once

#include <cstdint>

namespace optimus {

struct LossSum {
  double sum = 0;
  std::int64_t count = 0;  // number of targets
  double mean() const { return sum / static_cast<double>(count); }
};

}  // namespace optimus
