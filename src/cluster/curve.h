// Curve: the fraction of a peak that is reached, as a function of size. Interpolation is log-log; before the
// first and after the last point, the value is constant. Used for GEMMs, where the size is the dimension n of
// a GEMM of n x n matrices with the same number of operations, and for messages, where the size is in bytes.
#pragma once

#include <string>
#include <vector>

namespace optimus {

struct CurvePoint {
  double size = 0, fraction = 0;
  bool operator==(const CurvePoint&) const = default;
};

struct Curve {
  // Sizes are strictly ascending, and fractions never decrease. Without points, the fraction is 1 for every
  // size.
  std::vector<CurvePoint> points;
  bool operator==(const Curve&) const = default;

  // The fraction at `size`, or the first fraction if size <= 0. Takes O(log points) time.
  double at(double size) const;
};

inline constexpr int kMaxCurvePoints = 1'000;

// Throws a UserError that starts with `location` unless sizes are positive and ascending, and fractions are
// in (0, 1] and never decrease.
void validate(const Curve& curve, const std::string& location);

}  // namespace optimus
