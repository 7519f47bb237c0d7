// Assignment of samples by cost: each sample is assigned once, each micro-batch gets as many samples as
// planned, and the costs of the replicas are balanced.
#include "schedule/sample_assignment.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

#include "layout/property.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

Plan plan_of(int dp, int pp, std::int64_t batch, int microbatch) {
  UniformPlan uniform{.pp = pp, .dp = dp, .batch = batch, .sequence_length = 64};
  uniform.microbatch = microbatch;
  return uniform_plan(small_model(4, true), uniform);
}

// Costs of places [first, last).
double cost_of(const std::vector<std::int64_t>& dealt, const std::vector<double>& costs, std::size_t first,
               std::size_t last) {
  double sum = 0;
  for (std::size_t place = first; place < last; ++place) sum += costs[static_cast<std::size_t>(dealt[place])];
  return sum;
}

TEST(Deal, BalancesReplicas) {
  const std::vector<double> costs = {9, 9, 1, 1, 1, 1, 1, 1};
  const std::vector<std::int64_t> dealt = assign_samples_by_cost(plan_of(2, 1, 8, 4), costs);
  EXPECT_EQ(cost_of(dealt, costs, 0, 4), 12);
  EXPECT_EQ(cost_of(dealt, costs, 4, 8), 12);
}

// In a pipeline, the next stage waits for each micro-batch.
TEST(Deal, BalancesMicrobatchesOfPipeline) {
  const std::vector<double> costs = {16, 16, 16, 16, 1, 1, 1, 1};
  const std::vector<std::int64_t> dealt = assign_samples_by_cost(plan_of(1, 2, 8, 2), costs);
  for (std::size_t first = 0; first < 8; first += 2) EXPECT_EQ(cost_of(dealt, costs, first, first + 2), 17);
}

TEST(Deal, KeepsOrderIfBalancingIsUselessOrInvalid) {
  std::vector<std::int64_t> in_order(8);
  std::iota(in_order.begin(), in_order.end(), 0);
  const std::vector<double> costs = {9, 9, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(assign_samples_by_cost(plan_of(1, 1, 8, 2), costs), in_order) << "one device";
  EXPECT_EQ(assign_samples_by_cost(plan_of(2, 1, 8, 4), std::vector<double>(8, 3)), in_order)
      << "all costs equal";
  Plan asynchronous = plan_of(1, 2, 8, 2);
  asynchronous.schedule = Schedule::pipedream;
  EXPECT_EQ(assign_samples_by_cost(asynchronous, costs), in_order) << "micro-batches are updates";
}

TEST(Deal, AssignsEachSampleOnce) {
  EXPECT_TRUE(holds("plans", 200, [] {
    const ModelSpec model = small_model(4, true);
    const Plan plan = random_plan::plan_for(
        model, {.most_stages = 3, .most_width = 4, .most_pipelines = 3, .most_microbatches = 4});
    std::vector<double> costs;
    for (std::int64_t i = 0; i < plan.batch; ++i) costs.push_back(*rc::gen::inRange(0, 100));
    std::vector<std::int64_t> dealt = assign_samples_by_cost(plan, costs);
    RC_ASSERT(dealt == assign_samples_by_cost(plan, costs));
    std::sort(dealt.begin(), dealt.end());
    for (std::size_t i = 0; i < dealt.size(); ++i) RC_ASSERT(dealt[i] == static_cast<std::int64_t>(i));
  }));
}

// With many samples per replica, the largest cost is at most the mean plus one sample, because each sample
// goes to the least loaded replica.
TEST(Deal, LoadIsAtMostMeanPlusOneSample) {
  EXPECT_TRUE(holds("batches", 100, [] {
    const int dp = *rc::gen::inRange(2, 9), each = 4 * *rc::gen::inRange(2, 5);
    std::vector<double> costs;
    double sum = 0, largest = 0;
    for (int i = 0; i < dp * each; ++i) {
      const double length = *rc::gen::inRange(1, 65);
      costs.push_back(length * length), sum += costs.back(), largest = std::max(largest, costs.back());
    }
    const std::vector<std::int64_t> dealt = assign_samples_by_cost(plan_of(dp, 1, dp * each, each), costs);
    for (int r = 0; r < dp; ++r)
      RC_ASSERT(cost_of(dealt, costs, static_cast<std::size_t>(r * each),
                        static_cast<std::size_t>((r + 1) * each)) <= sum / dp + largest);
  }));
}

}  // namespace
}  // namespace optimus
