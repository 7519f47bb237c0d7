// Corrections of predictions by measured step times, and of block rates by calibration.
#include "adapt/prediction_memory.h"

#include <gtest/gtest.h>

#include "adapt/calibration.h"
#include "adapt/respond.h"
#include "cluster/standard.h"
#include "model/presets.h"
#include "schedule/program.h"
#include "settings/expected.h"

namespace optimus {
namespace {

const ModelSpec& gpt2() {
  static const ModelSpec model = *find_preset("gpt2");
  return model;
}
Plan grid(int pp, int dp) {
  return uniform_plan(gpt2(), {.pp = pp, .dp = dp, .microbatch = 1, .batch = 64, .sequence_length = 512});
}

TEST(PredictionMemory, CorrectsKindsThatHaveRun) {
  PredictionMemory memory;
  memory.record(grid(4, 1), 1, 2, true);
  EXPECT_DOUBLE_EQ(memory.trust_in(grid(2, 1), grid(4, 1)).factor, 2);
  EXPECT_DOUBLE_EQ(memory.trust_in(grid(2, 1), grid(4, 1)).uncertainty, 0);
  const auto other = memory.trust_in(grid(1, 4), grid(4, 1));
  EXPECT_DOUBLE_EQ(other.factor, 2);
  EXPECT_DOUBLE_EQ(other.uncertainty, std::log(2.0))
      << "the error of the present plan is the doubt of the other kind";
  memory.record(grid(1, 4), 1, 3, false);
  EXPECT_DOUBLE_EQ(memory.trust_in(grid(1, 2), grid(4, 1)).factor, 3);
  EXPECT_DOUBLE_EQ(memory.trust_in(grid(1, 2), grid(4, 1)).uncertainty, 0);
  EXPECT_TRUE(memory.has_run_undisturbed(grid(2, 1)));
  EXPECT_FALSE(memory.has_run_undisturbed(grid(1, 4))) << "measured under a condition";
}

// Sharded state uses other collectives than replicated state.
TEST(PredictionMemory, DoubtsAnotherSharding) {
  const auto replicas = [](int zero) {
    UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 512};
    shape.strategy.zero = zero;
    return uniform_plan(gpt2(), shape);
  };
  PredictionMemory memory;
  memory.record(replicas(0), 1, 2, true);
  const auto near = memory.trust_in(replicas(1), replicas(0)), far = memory.trust_in(grid(4, 1), replicas(0));
  EXPECT_DOUBLE_EQ(near.factor, 2);
  EXPECT_GT(near.uncertainty, 0);
  EXPECT_GT(far.uncertainty, 2 * near.uncertainty);
  memory.record(replicas(2), 1, 3, true);
  EXPECT_DOUBLE_EQ(memory.trust_in(replicas(1), replicas(0)).factor, 3);
  EXPECT_DOUBLE_EQ(memory.trust_in(replicas(1), replicas(0)).uncertainty, 0);
}

// Schedules differ in gaps between instructions and in split weight gradients, which the cost model predicts
// least accurately.
TEST(PredictionMemory, DoubtsAnotherSchedule) {
  const auto stages = [](Schedule schedule, int zero = 0) {
    UniformPlan shape{
        .pp = 2, .dp = 2, .microbatch = 1, .batch = 64, .sequence_length = 512, .schedule = schedule};
    shape.strategy.zero = zero;
    return uniform_plan(gpt2(), shape);
  };
  const Plan usual = stages(Schedule::one_f_one_b), split = stages(Schedule::zero_bubble),
             both = stages(Schedule::zero_bubble, 1);
  PredictionMemory memory;
  memory.record(usual, 1, 2, true);
  const auto other = memory.trust_in(split, usual), others = memory.trust_in(both, usual);
  EXPECT_DOUBLE_EQ(other.factor, 2);
  EXPECT_GT(other.uncertainty, memory.trust_in(stages(Schedule::one_f_one_b, 1), usual).uncertainty);
  EXPECT_GT(others.uncertainty, other.uncertainty);
  EXPECT_LT(others.uncertainty, memory.trust_in(grid(1, 4), usual).uncertainty);
  EXPECT_FALSE(memory.has_run_undisturbed(split));
  memory.record(split, 1, 3, true);
  EXPECT_DOUBLE_EQ(memory.trust_in(split, usual).factor, 3);
  EXPECT_DOUBLE_EQ(memory.trust_in(split, usual).uncertainty, 0);
  EXPECT_DOUBLE_EQ(memory.trust_in(both, usual).factor, 3) << "the nearest kind counts";
  EXPECT_DOUBLE_EQ(memory.trust_in(usual, split).factor, 2);
}

// The measured rate of the head changes predicted step times and the distribution of layers.
TEST(Calibration, HeavyHeadSlowsLastStage) {
  const Cluster cluster(standard_cluster("v100x4"));
  const ClusterView cluster_view(cluster);
  const ModelSpec model = gpt2();
  const Constants even = with_rates(fitted_constants(), {1, 1, 1}),
                  heavy = with_rates(fitted_constants(), {1, 1, 5});
  const auto seconds = [&](const Plan& plan, const Constants& constants) {
    Demand demand{model, cluster, optimus_software(), constants};
    demand.batch = plan.batch, demand.sequence_length = plan.sequence_length;
    demand.precision = plan.precision;
    return seconds_of(demand, cluster_view, plan);
  };
  EXPECT_DOUBLE_EQ(seconds(grid(4, 1), even), seconds(grid(4, 1), fitted_constants()));
  const double stages = seconds(grid(4, 1), heavy) / seconds(grid(4, 1), even),
               replicas = seconds(grid(1, 4), heavy) / seconds(grid(1, 4), even);
  EXPECT_GT(replicas, 1);
  EXPECT_GT(stages, 1.5 * replicas) << "the head weighs less if all ranks have a part of it";
}

TEST(Calibration, RecutUsesMeasuredHead) {
  const Cluster cluster(standard_cluster("v100x4"));
  ModelSpec model = gpt2();
  model.vocab = 4096;  // a head as heavy as half a layer
  const Plan plan = uniform_plan(model, {.pp = 4, .microbatch = 1, .batch = 64, .sequence_length = 512});
  const auto layers_of_last = [&](double head) {
    const Constants constants = with_rates(fitted_constants(), {1, 1, head});
    Demand demand{model, cluster, optimus_software(), constants};
    demand.batch = plan.batch, demand.sequence_length = plan.sequence_length;
    demand.precision = plan.precision;
    for (const PlannedOption& option : value_or_throw(responses(demand, plan, {}, {}, {})))
      if (option.option.response == Response::recut)
        return option.plan.pipelines[0].stages.back().chunks.front().runs.front().count - 1;
    return 3;  // unchanged: 12 layers in four stages
  };
  EXPECT_EQ(layers_of_last(1), 3);
  EXPECT_LE(layers_of_last(5), 2);
  EXPECT_GE(layers_of_last(5), 1);
}

// A plan that does not use all devices has gaps in its device numbers.
TEST(PredictionMemory, PredictsPlansWithGapsInDeviceNumbers) {
  const Plan whole = grid(1, 4);
  Plan gaps = whole;
  gaps.pipelines[0].stages[0].devices = {0, 1, 4, 5};
  const std::vector<double> usual = predicted_seconds("cpu", whole, gpt2(), compile(whole, gpt2(), 3)),
                            other = predicted_seconds("cpu", gaps, gpt2(), compile(gaps, gpt2(), 5));
  ASSERT_FALSE(usual.empty());
  EXPECT_EQ(usual, other);
}

}  // namespace
}  // namespace optimus
