// The gradient noise scale of gradients with known noise.
#include "plan/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace optimus {
namespace {

// Gradients of 50 numbers with known mean and noise: |G|^2 = 50 x 0.1^2 = 0.5, trace of the covariance 50.
TEST(NoiseScale, EstimatesFromTwoBatchSizes) {
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
    scale.add_measurement(group_squared, group, squared, group * groups);
  }
  ASSERT_TRUE(scale.samples());
  // In one step |G|^2 has a standard deviation of about 0.35 (2 |G| sqrt(S / 50 / 64) plus the contribution
  // of noise^2). The mean of the last 50 steps has a tenth of that, relative to 0.5: 7 %. The tolerance is
  // four standard deviations.
  EXPECT_NEAR(*scale.samples(), 100, 28);
}

// The same gradients, in batches that grow from 16 to 64, clipped in every second step: |G|^2 = 0.5, scale
// 100.
TEST(NoiseScale, EstimatesFromOwnUpdates) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  NoiseScale scale;
  std::vector<double> moment(50, 0), gradient(50);
  for (int step = 0; step < 4000; ++step) {
    UpdateStatistics seen{.samples = step < 2000 ? 16.0 : 64.0, .clip_factor = step % 2 == 0 ? 1.0 : 0.5};
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = 0.1 + normal(random) / std::sqrt(seen.samples);
      seen.gradient_squared += gradient[i] * gradient[i], seen.moment_product += gradient[i] * moment[i];
      moment[i] = seen.beta1 * moment[i] + (1 - seen.beta1) * seen.clip_factor * gradient[i];
    }
    scale.add_measurement(seen);
    if (step == 19) {
      EXPECT_EQ(scale.samples(), std::nullopt) << "there is no moment before the first update";
    }
  }
  EXPECT_EQ(scale.num_steps, 3999);
  ASSERT_TRUE(scale.samples());
  // In one step the product has a standard deviation of sqrt(|G|^2 (1 + 1/19) / 64 + 50 / 64^2 / 19) = 0.094
  // around 0.5 (the noise of the moment is that of 19 batches). The noise of the moment is correlated over 19
  // steps, so the mean of the last 50 has at most 0.094 x sqrt(20 / 50) = 0.06, or 12 %. The tolerance is
  // four standard deviations.
  EXPECT_NEAR(*scale.samples(), 100, 48);
}

TEST(NoiseScale, EmptyIfNoiseHidesGradient) {
  NoiseScale scale;
  for (int step = 0; step < 100; ++step)
    scale.add_measurement({.gradient_squared = 1, .moment_product = -0.1, .samples = 8});
  EXPECT_EQ(scale.samples(), std::nullopt);
}

}  // namespace
}  // namespace optimus
