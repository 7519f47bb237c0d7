// Curve: how much of a peak is reached, as a function of size. Points are joined by straight lines when both
// axes are logarithmic; before the first and behind the last point the value stays. Used for products (size:
// the edge of a cube of the same work) and for messages (size: bytes).
#pragma once

#include <string>
#include <vector>

namespace optimus {

struct CurvePoint {
  double size = 0, fraction = 0;
  bool operator==(const CurvePoint&) const = default;
};

struct Curve {
  std::vector<CurvePoint> points;  // sizes ascend, fractions never descend; none: 1 everywhere
  bool operator==(const Curve&) const = default;

  // O(log points). For size <= 0 the first fraction.
  double at(double size) const;
};

inline constexpr int kMostCurvePoints = 1'000;

// Throws UserError that begins with `where`: sizes must be above 0 and ascend, fractions must be above 0, at
// most 1 and not descend.
void validate(const Curve& curve, const std::string& where);

}  // namespace optimus
