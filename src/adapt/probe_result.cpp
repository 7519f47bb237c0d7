// Implements probe_result.h.
#include "adapt/probe_result.h"

#include <algorithm>
#include <cstddef>

namespace optimus {

std::vector<double> slowdowns(const std::vector<double>& seconds) {
  std::vector<double> measured;
  for (const double value : seconds)
    if (value > 0) measured.push_back(value);
  if (measured.size() < 3) return {};
  const auto median = measured.begin() + static_cast<std::ptrdiff_t>((measured.size() - 1) / 2);
  std::nth_element(measured.begin(), median, measured.end());
  std::vector<double> result;
  for (const double value : seconds) result.push_back(value / *median);
  return result;
}

}  // namespace optimus
