#include "search/stages.h"

#include <gtest/gtest.h>

#include <functional>

#include "search/random_demand.h"

namespace optimus {
namespace {

double brute_force(const std::vector<std::vector<double>>& times, int layers, double microbatches) {
  double least = kInfeasible;
  std::vector<int> distribution(times.size());
  const std::function<void(std::size_t, int)> distribute = [&](std::size_t s, int left) {
    if (s == times.size()) {
      if (left == 0) least = std::min(least, pipeline_seconds(times, distribution, microbatches));
      return;
    }
    for (int n = 1; n <= left && n < std::ssize(times[s]); ++n) {
      if (times[s][static_cast<std::size_t>(n)] >= kInfeasible) continue;
      distribution[s] = n;
      distribute(s + 1, left - n);
    }
  };
  distribute(0, layers);
  return least;
}

TEST(Stages, DistributionMatchesBruteForce) {
  EXPECT_TRUE(rc::check([] {
    const int stages = pick(1, 4), layers = pick(stages, 9);
    std::vector<std::vector<double>> times;
    for (int s = 0; s < stages; ++s) {
      std::vector<double> stage = {kInfeasible};
      double sum = pick(0, 20);
      const int fitting = pick(1, layers);
      for (int n = 1; n <= layers; ++n) sum += pick(1, 20), stage.push_back(n <= fitting ? sum : kInfeasible);
      times.push_back(stage);
    }
    const double microbatches = pick(1, 20);
    const std::vector<int> distribution = distribute_layers(times, layers, microbatches);
    const double least = brute_force(times, layers, microbatches);
    RC_ASSERT(distribution.empty() == (least >= kInfeasible));
    if (!distribution.empty()) RC_ASSERT(pipeline_seconds(times, distribution, microbatches) == least);
  }));
}

TEST(Stages, ExpensiveEndsGetFewerLayers) {
  // The head costs as much as two layers: the last stage gets two fewer.
  std::vector<std::vector<double>> times(4);
  for (std::size_t s = 0; s < 4; ++s) {
    times[s] = {kInfeasible};
    for (int n = 1; n <= 20; ++n) times[s].push_back(n + (s == 3 ? 2 : 0));
  }
  EXPECT_EQ(distribute_layers(times, 18, 100), (std::vector<int>{5, 5, 5, 3}));
  EXPECT_TRUE(distribute_layers({{kInfeasible, kInfeasible}}, 1, 1).empty());
}

}  // namespace
}  // namespace optimus
