// Curve: the fraction of a peak that is reached, as a function of size. Interpolation is linear with both
// axes logarithmic; before the first and after the last point the value is constant. Used for GEMMs (size:
// edge of a cube with the same number of operations) and for messages (size: bytes).
#pragma once

#include <string>
#include <vector>

namespace optimus {

struct CurvePoint {
  double size = 0, fraction = 0;
  bool operator==(const CurvePoint&) const = default;
};

struct Curve {
  // Sizes ascend, fractions never descend; if empty, the fraction is 1 everywhere.
  std::vector<CurvePoint> points;
  bool operator==(const Curve&) const = default;

  // The fraction at `size`; for size <= 0 the first one. O(log points).
  double at(double size) const;
};

inline constexpr int kMaxCurvePoints = 1'000;

// Throws a UserError that starts with `location` unless sizes are above 0 and ascend, and fractions are above
// 0, at most 1 and do not descend.
void validate(const Curve& curve, const std::string& location);

}  // namespace optimus
