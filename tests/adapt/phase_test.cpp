#include "adapt/phase.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace optimus {
namespace {

// Gradients of 50 numbers whose mean and noise are known: |G|^2 = 50 x 0.1^2 = 0.5, trace of the covariance 50.
TEST(Phase, NoiseScaleIsThatOfTheGradients) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  NoiseScale scale;
  const int group = 8, groups = 8;
  for (int step = 0; step < 2000; ++step) {
    double group_squared = 0, squared = 0;
    std::vector<double> whole(50, 0);
    for (int g = 0; g < groups; ++g)
      for (double& sum : whole) {
        const double value = 0.1 + normal(random) / std::sqrt(double{group});
        group_squared += value * value / groups, sum += value / groups;
      }
    for (const double value : whole) squared += value * value;
    scale.see(group_squared, group, squared, group * groups);
  }
  ASSERT_TRUE(scale.samples());
  // Of one step |G|^2 has a deviation of about 0.35 (2 |G| sqrt(S / 50 / 64) and what noise^2 adds); the mean of the last 50 steps, a tenth
  // of that, against 0.5: 7 %; four of these.
  EXPECT_NEAR(*scale.samples(), 100, 28);
}

TEST(Phase, PlateauIsSeenWhereTheLossStops) {
  std::mt19937 random(2);
  std::normal_distribution<double> normal;
  LossPlateau falling, flat;
  for (int step = 0; step < 300; ++step) {
    falling.see(5 - 0.005 * step + 0.05 * normal(random));
    flat.see(5 + 0.05 * normal(random));
    if (step == 100) {
      EXPECT_FALSE(flat.has_stopped());  // too early to tell
    }
  }
  EXPECT_FALSE(falling.has_stopped());
  EXPECT_TRUE(flat.has_stopped());
}

TEST(Phase, LengthMixChanges) {
  LengthMix mix;
  for (int step = 0; step < 50; ++step) mix.see({4, 400, 100, 4 * 1e4});
  EXPECT_NEAR(mix.change(), 1, 1e-12);
  for (int step = 0; step < 200; ++step) mix.see({4, 400, 370, 370.0 * 370 + 300});
  EXPECT_NEAR(mix.change(), 137'200 * 4 / 160'000.0, 0.01);
}

}  // namespace
}  // namespace optimus
