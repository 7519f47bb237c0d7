#include "recovery/takeover.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "plan/random_plan.h"
#include "plan/validate.h"

namespace optimus {
namespace {

std::int64_t sequences(const Plan& plan) {
  std::int64_t sum = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    sum = std::accumulate(pipeline.microbatches.begin(), pipeline.microbatches.end(), sum);
  return sum;
}

bool uses_device(const Plan& plan, int device) {
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (std::find(stage.devices.begin(), stage.devices.end(), device) != stage.devices.end()) return true;
  return false;
}

Plan two_stages(int dp, int zero) {
  UniformPlan shape{.pp = 2, .dp = dp, .microbatch = 1, .batch = 12, .sequence_length = 8};
  shape.strategy.zero = zero;
  return uniform_plan(small_model(4, true), shape);
}

TEST(Takeover, OtherReplicasOfTheStageShareItsWork) {
  const Plan plan = two_stages(3, 0);
  const std::optional<Plan> left = without_device(plan, 4);
  ASSERT_TRUE(left);
  EXPECT_EQ(find_problem(*left, small_model(4, true)), std::nullopt);
  ASSERT_EQ(left->pipelines.size(), 1u);
  EXPECT_EQ(left->pipelines[0].stages[0].devices, (std::vector<int>{0, 1, 2}));  // no rank moves
  EXPECT_EQ(left->pipelines[0].stages[1].devices, (std::vector<int>{3, 5}));
  EXPECT_EQ(left->pipelines[0].microbatches, plan.pipelines[0].microbatches);
}

TEST(Takeover, OtherPipelinesShareItsMicrobatches) {
  Plan plan = two_stages(1, 0);
  plan.pipelines.push_back(plan.pipelines[0]);
  plan.pipelines.push_back(plan.pipelines[0]);
  for (int p = 0; p < 3; ++p)
    for (int s = 0; s < 2; ++s)
      plan.pipelines[static_cast<std::size_t>(p)].stages[static_cast<std::size_t>(s)].devices = {2 * p + s};
  plan.pipelines[0].microbatches = {2, 2, 2, 2};
  plan.pipelines[1].microbatches = {2, 2};
  plan.pipelines[2].microbatches = {2, 2, 2};
  plan.batch = 18;
  const std::optional<Plan> left = without_device(plan, 5);
  ASSERT_TRUE(left);
  EXPECT_EQ(find_problem(*left, small_model(4, true)), std::nullopt);
  ASSERT_EQ(left->pipelines.size(), 2u);
  // In proportion to their previous shares: twice as many to the first.
  EXPECT_EQ(left->pipelines[0].microbatches.size(), 6u);
  EXPECT_EQ(left->pipelines[1].microbatches.size(), 3u);
}

TEST(Takeover, ReturnsNothingIfStateIsLost) {
  EXPECT_FALSE(without_device(two_stages(3, 1), 4));  // no other device has this shard of the state
  EXPECT_FALSE(without_device(two_stages(1, 0), 1));  // no other device has these layers
}

TEST(Takeover, PlansAreValidAndKeepBatchSize) {
  EXPECT_TRUE(rc::check([] {
    const ModelSpec model = small_model(random_plan::pick(1, 6), false);
    const Plan plan = random_plan::plan_for(model);
    RC_PRE(!find_problem(plan, model));
    const int device = random_plan::pick(0, num_devices(plan) - 1);
    const std::optional<Plan> left = without_device(plan, device);
    if (!left) return;
    const auto problem = find_problem(*left, model);
    if (problem) RC_FAIL(*problem);
    RC_ASSERT(sequences(*left) == plan.batch);
    RC_ASSERT(!uses_device(*left, device));
    RC_ASSERT(num_devices(*left) < num_devices(plan));
  }));
}

TEST(Takeover, IsBetterIfPreparationTakesLong) {
  ResponseTimes times{.takeover_step = 1.2, .replanned_step = 1.1, .pause = 0.2, .move = 0.5};
  times.switch_pause = 0.1;
  times.prepare = 0.01;
  EXPECT_LT(seconds_lost_by_replanning(times), seconds_lost_by_takeover(times));
  times.prepare = 5;
  EXPECT_LT(seconds_lost_by_takeover(times), seconds_lost_by_replanning(times));
}

}  // namespace
}  // namespace optimus
