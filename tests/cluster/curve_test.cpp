// Curves are linear on logarithmic axes, monotone, and constant outside their points.
#include "cluster/curve.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "cluster/random_profile.h"

namespace optimus {
namespace {

TEST(Curve, InterpolatesLogarithmically) {
  const Curve curve{{{10, 0.01}, {1000, 1}}};
  EXPECT_DOUBLE_EQ(curve.at(10), 0.01);
  EXPECT_DOUBLE_EQ(curve.at(1000), 1);
  EXPECT_NEAR(curve.at(100), 0.1, 1e-12);
  EXPECT_DOUBLE_EQ(curve.at(1), 0.01);
  EXPECT_DOUBLE_EQ(curve.at(0), 0.01);
  EXPECT_DOUBLE_EQ(curve.at(-1), 0.01);
  EXPECT_DOUBLE_EQ(curve.at(1e9), 1);
  EXPECT_DOUBLE_EQ(Curve{}.at(5), 1);
}

TEST(Curve, NeverDescends) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Curve curve = random_profile(seed).types[0].gemm_efficiency;
    double before = 0;
    for (double size = 0.5; size < 1e9; size *= 1.37) {
      const double value = curve.at(size);
      EXPECT_GE(value, before * (1 - 1e-12));
      EXPECT_LE(value, 1);
      before = value;
    }
  }
}

TEST(Curve, RejectsInvalidCurves) {
  const Curve bad[] = {{{{0, 0.5}}},         {{{-1, 0.5}}},        {{{1, 0}}},           {{{1, 1.1}}},
                       {{{1, .5}, {1, .6}}}, {{{2, .5}, {1, .6}}}, {{{1, .5}, {2, .4}}}, {{{NAN, .5}}},
                       {{{1, NAN}}},         {{{INFINITY, .5}}}};
  for (const Curve& curve : bad) EXPECT_THROW(validate(curve, "x"), UserError);
  EXPECT_NO_THROW(validate(Curve{{{1, .5}, {2, .5}, {3, 1}}}, "x"));
  EXPECT_THROW(validate(Curve{std::vector<CurvePoint>(1001, CurvePoint{1, 1})}, "x"), UserError);
}

}  // namespace
}  // namespace optimus
