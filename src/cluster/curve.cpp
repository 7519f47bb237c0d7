// See curve.h.
#include "cluster/curve.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace optimus {

double Curve::at(double size) const {
  if (points.empty()) return 1;
  const auto right = std::upper_bound(points.begin(), points.end(), size,
                                      [](double x, const CurvePoint& point) { return x < point.size; });
  if (right == points.begin()) return points.front().fraction;
  if (right == points.end()) return points.back().fraction;
  const auto left = right - 1;
  const double part = std::log(size / left->size) / std::log(right->size / left->size);
  return left->fraction * std::pow(right->fraction / left->fraction, part);
}

void validate(const Curve& curve, const std::string& location) {
  if (curve.points.size() > kMaxCurvePoints)
    throw UserError("{} has {} points, but at most {} are supported", location, curve.points.size(),
                    kMaxCurvePoints);
  CurvePoint previous_point;
  for (const CurvePoint& point : curve.points) {
    if (!(std::isfinite(point.size) && point.size > previous_point.size))
      throw UserError("{}: expected ascending sizes above 0, got {} after {}", location, point.size,
                      previous_point.size);
    if (!(point.fraction > 0 && point.fraction <= 1 && point.fraction >= previous_point.fraction))
      throw UserError("{}: expected non-decreasing fractions above 0 and at most 1, got {} after {}",
                      location, point.fraction, previous_point.fraction);
    previous_point = point;
  }
}

}  // namespace optimus
