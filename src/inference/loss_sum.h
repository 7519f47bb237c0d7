// The summed loss of many target tokens. Sums from different ranks and passes can be added up. Plain data.
#pragma once

#include <cstdint>

namespace optimus {

struct LossSum {
  double sum = 0;
  std::int64_t count = 0;  // number of targets
  double mean() const { return sum / static_cast<double>(count); }
};

}  // namespace optimus
