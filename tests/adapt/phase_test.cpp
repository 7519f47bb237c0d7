// Signals of the training's phase.
#include "adapt/phase.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace optimus {
namespace {

TEST(Phase, FindsLossPlateau) {
  std::mt19937 random(2);
  std::normal_distribution<double> normal;
  LossPlateau falling, flat, noisy;
  for (int step = 0; step < 300; ++step) {
    falling.observe(5 - 0.005 * step + 0.05 * normal(random));
    flat.observe(5 + 0.05 * normal(random));
    noisy.observe(5 + (step % 2 == 0 ? 1 : -1));  // the noise would hide a fall of 0.1 in 200 steps
    if (step == 100) {
      EXPECT_FALSE(flat.has_stopped());  // the window is not full
    }
  }
  EXPECT_FALSE(falling.has_stopped());
  EXPECT_TRUE(flat.has_stopped());
  EXPECT_FALSE(noisy.has_stopped());
}

TEST(Phase, LengthMixReportsChange) {
  LengthMix mix;
  for (int step = 0; step < 50; ++step) mix.observe({4, 400, 100, 4 * 1e4});
  EXPECT_NEAR(mix.change(), 1, 1e-12);
  for (int step = 0; step < 200; ++step) mix.observe({4, 400, 370, 370.0 * 370 + 300});
  EXPECT_NEAR(mix.change(), 137'200 * 4 / 160'000.0, 0.01);
}

}  // namespace
}  // namespace optimus
