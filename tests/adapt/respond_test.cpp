// Answers to conditions, and trials of timelines with conditions and losses.
#include "adapt/respond.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "cluster/standard.h"
#include "model/presets.h"
#include "plan/validate.h"
#include "trials/timeline_trial.h"

namespace optimus {
namespace {

struct SmallRun {
  ModelSpec model = *find_preset("gpt2");
  Cluster cluster;
  Plan plan;
  explicit SmallRun(int pp, int dp, const char* machines = "v100x8") : cluster(standard_cluster(machines)) {
    UniformPlan shape{.pp = pp, .dp = dp, .microbatch = 1, .batch = 64, .sequence_length = 512};
    plan = uniform_plan(model, shape);
  }
  Demand demand() const {
    Demand result{model, cluster, optimus_software(), fitted_constants()};
    result.batch = 64, result.sequence_length = 512;
    return result;
  }
};

TEST(Respond, SharesSequencesBySpeed) {
  const SmallRun run(2, 4);
  std::vector<double> speeds(8, 1);
  speeds[2] = 0.5;
  const std::optional<Plan> shared = shared_by_speed(run.plan, speeds);
  ASSERT_TRUE(shared);
  EXPECT_EQ(find_problem(*shared, run.model), std::nullopt);
  ASSERT_EQ(shared->pipelines.size(), 2u);
  const auto sequences = [&](std::size_t p) {
    return std::accumulate(shared->pipelines[p].microbatches.begin(), shared->pipelines[p].microbatches.end(),
                           0);
  };
  EXPECT_EQ(sequences(0) + sequences(1), 64);
  EXPECT_EQ(sequences(0), 9);  // 64 x 0.5 / 3.5 = 9.1
  EXPECT_FALSE(shared_by_speed(run.plan, std::vector<double>(8, 1)));
}

// Replicas with a single micro-batch: the sizes of micro-batches change instead of their number.
TEST(Respond, SharesSingleMicrobatchBySpeed) {
  SmallRun run(1, 4);
  run.plan = uniform_plan(run.model, {.dp = 4, .microbatch = 8, .batch = 32, .sequence_length = 512});
  const std::optional<Plan> shared = shared_by_speed(run.plan, {1, 1, 0.5, 1});
  ASSERT_TRUE(shared);
  EXPECT_EQ(find_problem(*shared, run.model), std::nullopt);
  ASSERT_EQ(shared->pipelines.size(), 2u);
  EXPECT_EQ(shared->pipelines[0].microbatches, std::vector<int>{5});  // 32 x 0.5 / 3.5 = 4.6
  EXPECT_EQ(shared->pipelines[1].microbatches, std::vector<int>{27});
}

TEST(Respond, RecutsInterleavedStagesAsPlainOnes) {
  SmallRun run(2, 1);
  run.plan = uniform_plan(run.model, {.pp = 2,
                                      .chunks = 2,
                                      .microbatch = 1,
                                      .batch = 64,
                                      .sequence_length = 512,
                                      .schedule = Schedule::interleaved});
  ASSERT_EQ(find_problem(run.plan, run.model), std::nullopt);
  const std::optional<Plan> cut = cut_by_speed(run.plan, run.model, {1, 0.4}, {});
  ASSERT_TRUE(cut);
  EXPECT_EQ(find_problem(*cut, run.model), std::nullopt);
  EXPECT_EQ(cut->schedule, Schedule::one_f_one_b);
  EXPECT_GT(cut->pipelines[0].stages[0].chunks[0].end_block(), run.plan.num_blocks / 2 + 1);
}

TEST(Respond, TogglesRedundantCopyOfShards) {
  const ModelSpec model = *find_preset("gpt2");
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  EXPECT_EQ(with_other_redundancy(uniform_plan(model, shape), {0, 0, 1, 1}), std::nullopt);
  shape.strategy.zero = 1;
  const Plan once = uniform_plan(model, shape);
  const auto twice = with_other_redundancy(once, {0, 0, 1, 1});
  ASSERT_TRUE(twice.has_value());
  EXPECT_EQ(twice->copy_distance, 2) << "the copy is on the other node";
  EXPECT_EQ(with_other_redundancy(*twice, {0, 0, 1, 1}), once);
}

TEST(Respond, RecutsLayersBySpeed) {
  const SmallRun run(4, 2);
  std::vector<double> speeds(8, 1);
  speeds[3] = 0.5;  // of stage 1
  const std::optional<Plan> cut = cut_by_speed(run.plan, run.model, speeds, {});
  ASSERT_TRUE(cut);
  EXPECT_EQ(find_problem(*cut, run.model), std::nullopt);
  const auto layers = [&](std::size_t s) {
    return cut->pipelines[0].stages[s].chunks[0].runs[0].count - (s == 0 || s == 3);
  };
  EXPECT_LT(layers(1), layers(0));
  EXPECT_LE(layers(3), layers(2));  // the last stage also has the head
}

TEST(Respond, FindsFasterPlansForSlowDevice) {
  const SmallRun run(1, 8);
  const std::vector<PlannedOption> options =
      value_or_throw(responses(run.demand(), run.plan, {{Cause::device, 5, 3}}, {}));
  ASSERT_GE(options.size(), 3u);
  EXPECT_EQ(options.front().plan, run.plan);
  double best = options.front().option.step_seconds;
  bool has_share = false, has_drop = false;
  for (const PlannedOption& one : options) {
    EXPECT_EQ(find_problem(one.plan, run.model), std::nullopt);
    best = std::min(best, one.option.step_seconds);
    has_share |= one.option.response == Response::share, has_drop |= one.option.response == Response::drop;
  }
  EXPECT_TRUE(has_share && has_drop);
  // At a third of its speed, the device makes all ranks wait three times as long. Without it, steps would
  // take 8 / 7 of the time.
  EXPECT_LT(best, 0.6 * options.front().option.step_seconds);
}

TEST(Respond, RuleRecoversMostOfTheLostSpeed) {
  const SmallRun run(1, 8);
  const Demand demand = run.demand();
  const ConditionTimeline line{3600, {{{Cause::device, 5, 3}, 600, 1800}}};
  const TrialCase trial = trial_of(line, demand, run.plan, {});
  const double never = run_trial({.kind = PolicyKind::never}, trial).useful_steps,
               rule = run_trial({.kind = PolicyKind::rule}, trial).useful_steps,
               best = hindsight(trial).useful_steps;
  // The rule recovers at least 70 % of the work that the condition costs.
  EXPECT_GT(rule - never, 0.7 * (best - never));
  EXPECT_LE(rule, best);
}

// A node is lost while a device of another node is slow. Only plans for the remaining node can run, and all
// plans can run again after the node has returned.
TEST(Respond, CombinesLossesAndConditions) {
  const SmallRun run(1, 16, "v100x16");
  const Demand demand = run.demand();
  const ConditionTimeline line{4000, {{{Cause::device, 5, 3}, 1000, 2000}}, {{1, 2000, 1000}}};
  const TrialCase trial = trial_of(line, demand, run.plan, {});
  ASSERT_EQ(trial.segments.size(), 4u)
      << "no condition, slow device, slow device without the node, no condition";
  const auto seconds = [&](std::size_t segment, std::size_t mode) {
    return trial.segments[segment].step_seconds[mode];
  };
  for (std::size_t s = 0; s < 4; ++s) EXPECT_EQ(trial.segments[s].is_loss, s == 2);
  EXPECT_GT(seconds(1, 0), 1.5 * seconds(0, 0)) << "slowed by the device";
  EXPECT_EQ(seconds(2, 0), 0) << "its node is lost";
  EXPECT_EQ(seconds(3, 0), seconds(0, 0));
  int num_left = 0;
  for (std::size_t m = 0; m < trial.modes.size(); ++m)
    if (seconds(2, m) > 0) {
      ++num_left;
      EXPECT_LE(trial.modes[m].devices, 8);
      EXPECT_GT(seconds(0, m), 0) << "can also run with all nodes";
    }
  EXPECT_GT(num_left, 1);
  const TrialOutcome never = run_trial({.kind = PolicyKind::never}, trial),
                     rule = run_trial({.kind = PolicyKind::rule}, trial), best = hindsight(trial);
  EXPECT_EQ(rule.steps_lost, 1);
  EXPECT_LT(never.useful_steps, rule.useful_steps);
  EXPECT_LE(rule.useful_steps, best.useful_steps);
  EXPECT_GT(rule.useful_steps, 0.9 * best.useful_steps);
  EXPECT_THROW((void)trial_of(ConditionTimeline{100, {}, {{2, 10, 10}}}, demand, run.plan, {}), UserError);
  const TrialCase empty_trial =
      trial_of(ConditionTimeline{100, {}, {{0, 10, 10}, {1, 10, 10}}}, demand, run.plan, {});
  ASSERT_EQ(empty_trial.segments.size(), 3u);
  EXPECT_EQ(empty_trial.segments[1].step_seconds, std::vector<double>(empty_trial.modes.size(), 0));
}

// A timeline may begin without a node, and end without any. A plan that does not use a node loses nothing
// with it.
TEST(Respond, HandlesLossesOfAbsentAndUnusedNodes) {
  const SmallRun run(1, 16, "v100x16"), small(1, 8);
  const Demand demand = run.demand();
  const TrialCase begins = trial_of(ConditionTimeline{1000, {}, {{1, 0, 400}}}, demand, run.plan, {});
  ASSERT_EQ(begins.segments.size(), 2u);
  EXPECT_EQ(begins.modes[0].devices, 16) << "the requested plan";
  EXPECT_EQ(begins.segments[0].step_seconds[0], 0);
  EXPECT_GT(begins.segments[1].step_seconds[0], 0);
  EXPECT_GT(run_trial({.kind = PolicyKind::rule}, begins).useful_steps, 0);

  const TrialCase spare = trial_of(ConditionTimeline{1000, {}, {{1, 400, 100}}}, demand, small.plan, {});
  for (const TrialSegment& segment : spare.segments)
    EXPECT_GT(segment.step_seconds[0], 0) << "it uses only node 0";
  EXPECT_EQ(run_trial({.kind = PolicyKind::never}, spare).steps_lost, 0);
  EXPECT_EQ(run_trial({.kind = PolicyKind::never}, spare).seconds_lost, 0);

  const TrialCase empty_trial =
      trial_of(ConditionTimeline{1000, {}, {{0, 0, 1e6}}}, small.demand(), small.plan, {});
  EXPECT_EQ(run_trial({.kind = PolicyKind::rule}, empty_trial).useful_steps, 0);
  EXPECT_EQ(hindsight(empty_trial).useful_steps, 0);

  HardwareProfile halves = run.cluster.profile();
  halves.missing_devices = {4, 5, 6, 7, 12, 13, 14, 15};
  const Cluster half(halves);
  const TrialCase left = trial_of(ConditionTimeline{1000, {}, {{1, 400, 100}}},
                                  demand_on(demand, half, fitted_constants()), small.plan, {});
  const std::vector<double>& without_node = left.segments[1].step_seconds;
  EXPECT_TRUE(std::any_of(without_node.begin(), without_node.end(), [](double seconds) {
    return seconds > 0;
  })) << "four devices of the other node are present";
}

// Without a search, the run continues with the replicas that have all their devices.
TEST(Respond, DropsReplicasWithoutSearchOnLargeClusters) {
  const SmallRun run(1, 32, "v100x32");
  const Demand demand = run.demand();
  const ConditionTimeline line{3000, {}, {{1, 1000, 1000}, {3, 1500, 1500}}};
  const TrialCase trial = trial_of(line, demand, run.plan, {}, {.max_searched_devices = 16});
  ASSERT_EQ(trial.segments.size(), 4u);
  const std::vector<int> expected = {32, 24, 16, 24};
  for (std::size_t s = 0; s < 4; ++s) {
    int most = 0;
    for (std::size_t m = 0; m < trial.modes.size(); ++m)
      if (trial.segments[s].step_seconds[m] > 0) most = std::max(most, trial.modes[m].devices);
    EXPECT_EQ(most, expected[s]) << s;
  }
  EXPECT_TRUE(is_loss_to(trial.segments[1], 0)) << "mode 0 uses node 1";
  for (std::size_t m = 0; m < trial.modes.size(); ++m)
    EXPECT_EQ(is_loss_to(trial.segments[2], static_cast<int>(m)), trial.segments[2].step_seconds[m] == 0)
        << "modes that can run have lost no device";
  EXPECT_GE(run_trial({.kind = PolicyKind::never}, trial).steps_lost, 1);
}

}  // namespace
}  // namespace optimus
