#include "simulate/fit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace optimus {
namespace {

// Measurements generated with known constants recover these constants if the prior is weak.
TEST(Fit, RecoversTrueConstants) {
  Constants truth;
  truth.gemm_ampere = 0.8, truth.bandwidth = 0.7, truth.launch = 9e-6;
  const auto model = [](std::size_t i, const Constants& c) {
    const auto x = static_cast<double>(i + 1);
    return x / c.gemm_ampere + 3 / (c.bandwidth * x) + 1e5 * c.launch * std::sqrt(x);
  };
  FitProblem problem;
  for (std::size_t i = 0; i < 60; ++i)
    problem.measured.push_back(model(i, truth)), problem.weights.push_back(1);
  problem.predict = model;
  problem.constant_names = {"product.ampere", "bandwidth", "launch"};
  const Constants found = fit(problem, Constants{}, {.steps = 40, .spread = 30, .noise = 0.01});
  EXPECT_NEAR(found.gemm_ampere, 0.8, 0.004);
  EXPECT_NEAR(found.bandwidth, 0.7, 0.01);
  EXPECT_NEAR(found.launch, 9e-6, 2e-7);
  EXPECT_EQ(found.fp8, Constants{}.fp8);  // not fitted
}

TEST(Fit, StaysAtPriorWithoutMeasurements) {
  FitProblem problem;
  problem.predict = [](std::size_t, const Constants&) { return 1.0; };
  problem.constant_names = {"bandwidth"};
  EXPECT_DOUBLE_EQ(fit(problem, Constants{}, {}).bandwidth, Constants{}.bandwidth);
}

TEST(Fit, RespectsBounds) {
  FitProblem problem;
  problem.measured = {1e-3}, problem.weights = {1000};
  problem.predict = [](std::size_t, const Constants& c) { return 1 / c.bandwidth; };
  problem.constant_names = {"bandwidth"};
  const double found = fit(problem, Constants{}, {}).bandwidth;
  for (const ConstantRow& row : constant_rows()) {
    if (row.name != "bandwidth") continue;
    EXPECT_LE(found, row.max_value);
  }
}

}  // namespace
}  // namespace optimus
