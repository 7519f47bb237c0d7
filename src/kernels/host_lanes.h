// Sums and maxima that a loop computes in several lanes. Lanes break the dependency of each operation on the
// previous one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/host_math.h"

namespace optimus {

inline constexpr std::int64_t kLanes = 16;

// Returns term(0) + ... + term(count - 1). Terms are added first within each lane, then over the lanes,
// always in the same order.
template <typename Number, typename Term>
Number lane_sum(std::int64_t count, Term term) {
  std::array<Number, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      lanes[static_cast<std::size_t>(lane)] += term(i + lane);
  Number total = 0;
  for (; i < count; ++i) total += term(i);
  for (const Number lane : lanes) total += lane;
  return total;
}

// Returns the largest of the terms and `at_least`. The result is unspecified if a term is NaN.
template <typename Number, typename Term>
Number lane_max(std::int64_t count, Number at_least, Term term) {
  std::array<OrderOf<Number>, kLanes> lanes;
  lanes.fill(order_of(at_least));
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      OrderOf<Number>& best = lanes[static_cast<std::size_t>(lane)];
      best = std::max(order_of(term(i + lane)), best);
    }
  OrderOf<Number> result = order_of(at_least);
  for (; i < count; ++i) result = std::max(order_of(term(i)), result);
  for (const OrderOf<Number> lane : lanes) result = std::max(lane, result);
  return from_order<Number>(result);
}

}  // namespace optimus
