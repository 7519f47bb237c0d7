#include "adapt/decide.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "adapt/lifetime.h"
#include "adapt/membership_history.h"
#include "base/error.h"
#include "cluster/standard.h"
#include "model/presets.h"
#include "plan/validate.h"
#include "trials/line_trial.h"

namespace optimus {
namespace {

int any_in(int low, int high) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1)); }

// A plan that takes 1.5 s where another takes 1.1 s, with a condition of some age.
Situation slow_device(double age, double pause) {
  Situation now;
  now.options = {
      {.response = Response::stay, .step_seconds = 1.5, .usual_seconds = 1},
      {.response = Response::share, .step_seconds = 1.1, .usual_seconds = 1.02, .pause_seconds = pause}};
  now.conditions = {{Cause::device, 1.5, age}};
  return now;
}

TEST(Decide, RuleWeighsTheGainAgainstThePause) {
  const Policy rule{.kind = PolicyKind::rule};
  EXPECT_EQ(choose(rule, slow_device(10, 1)).option, 1u);
  EXPECT_EQ(choose(rule, slow_device(10, 3000)).option, 0u);  // lasts ten minutes on average
  EXPECT_EQ(choose({.kind = PolicyKind::always_best}, slow_device(10, 3000)).option, 1u);
  EXPECT_EQ(choose({.kind = PolicyKind::never}, slow_device(10, 1)).option, 0u);
}

TEST(Decide, OldConditionsAreWorthMore) {
  // With a pause of two minutes: not for a condition that has just begun, which may be over in seconds; for one of an hour.
  const Policy rule{.kind = PolicyKind::rule};
  EXPECT_EQ(choose(rule, slow_device(5, 120)).option, 0u);
  EXPECT_EQ(choose(rule, slow_device(3600, 120)).option, 1u);
}

TEST(Decide, CheaperAnswersFirst) {
  Situation now = slow_device(60, 1);
  now.options.push_back(
      {.response = Response::replan, .step_seconds = 1.09, .usual_seconds = 1, .pause_seconds = 1});
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 1u);
  now.options[2].step_seconds = 0.9;  // much better: worth it
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 2u);
}

// How sure a factor is, is part of the doubt of the plans that it concerns: sharing with a slow device depends on it, leaving it out does not.
TEST(Decide, WhatIsSureIsPreferred) {
  const Policy rule{.kind = PolicyKind::rule};
  Situation now = slow_device(60, 1);
  now.options.push_back({.response = Response::drop,
                         .step_seconds = 1.2,
                         .usual_seconds = 1.2,
                         .doubt = 0.02,
                         .pause_seconds = 1});
  now.options[1].doubt = 0.02;
  EXPECT_EQ(choose(rule, now).option, 1u);
  now.options[1].doubt = 0.4;  // 1.1 s may be 1.6 s
  EXPECT_EQ(choose(rule, now).option, 2u);
  now.options[2].doubt = 0.4;
  EXPECT_EQ(choose(rule, now).option, 0u) << "neither is known to gain anything";
}

TEST(Decide, GoesBackWhenTheGainDoesNotCome) {
  Situation now = slow_device(60, 1);
  now.options[1].response = Response::resume, now.options[1].step_seconds = 1.49;
  now.predicted_gain = 0.3, now.realised_gain = 0.01;
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 1u);
  now.options[1].step_seconds = 1.51;  // what was left is no better
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 0u);
  now.options[1].step_seconds = 1.49;
  now.realised_gain = 0.28;
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 0u);
}

// Of the plan that ran before the condition and the one before the last switch.
TEST(Decide, GoesBackToTheQuickerOne) {
  Situation now = slow_device(60, 1);
  now.options[1].response = Response::resume, now.options[1].step_seconds = 1.4;
  now.options.push_back(now.options[1]);
  now.options[2].step_seconds = 1.2;
  now.predicted_gain = 0.3, now.realised_gain = -0.1;
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 2u);
  std::swap(now.options[1], now.options[2]);
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 1u);
  now.run_left = 1;  // the pause takes as long
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 0u);
}

// Without copies of its state a plan of eight devices is 4 % quicker, and a loss undoes 500 of its steps.
TEST(Decide, CopiesAreWorthWhatLossesWouldUndo) {
  const auto chosen = [](bool has_copies, double seconds_between_losses) {
    PlanOption copied{.response = Response::replan, .step_seconds = 1, .doubt = 0.005, .devices = 8};
    PlanOption bare = copied;
    bare.step_seconds = bare.usual_seconds = 0.96, bare.undone_steps = 500;
    copied.pause_seconds = bare.pause_seconds = 1;
    Situation now{.options = {has_copies ? copied : bare, has_copies ? bare : copied}};
    now.options.front().response = Response::stay, now.options.front().pause_seconds = 0;
    now.losses_per_device_second = 1 / (8 * seconds_between_losses);
    const bool moves = choose({.kind = PolicyKind::rule}, now).option == 1;
    return moves != has_copies;  // copies, then
  };
  constexpr double kHour = 3600, kMonth = 30 * 24 * kHour;
  for (const bool has_copies : {false, true}) {
    EXPECT_TRUE(chosen(has_copies, kHour)) << "an hour's work loses 500 steps of 3600";
    EXPECT_FALSE(chosen(has_copies, kMonth));
    // 500 steps in 4 h are 3.3 % of it: what is gained is less than what a change should bring.
    EXPECT_EQ(chosen(has_copies, 4 * kHour), has_copies);
  }
}

// The first losses outweigh what was expected before any, but one in the first minute is none a minute.
TEST(Decide, LossesAreExpectedAsTheyCame) {
  MembershipHistory comings{.began = 1000};
  const auto hours_between = [&](double now, ExpectedLifetime life = {}) {
    Situation situation;
    describe_membership(comings, now, 4, life, situation);
    EXPECT_EQ(situation.now, now - 1000);
    return 1 / (4 * situation.losses_per_device_second) / 3600;
  };
  EXPECT_NEAR(hours_between(1000), 12'500, 1) << "of four devices";
  comings.losses.add(1060);
  EXPECT_GT(hours_between(1060), 1);
  EXPECT_LT(hours_between(1060), 1.5);
  for (int i = 1; i < 10; ++i) comings.losses.add(1060 + 360 * i);
  EXPECT_NEAR(hours_between(1000 + 3600), 0.225, 0.01) << "ten in an hour, and five hours of a device more";
  EXPECT_GT(hours_between(4600, {.seconds = 1e6, .weight = 1}), 6) << "somebody knows better";
  Situation situation;
  describe_membership(comings, 4600 + 1800, 4, {}, situation);
  EXPECT_EQ(situation.losses_last_hour, 5);
  EXPECT_EQ(situation.since_loss, 4600 + 1800 - (1060 + 360 * 9));
  EXPECT_EQ(situation.arrivals_last_hour, 0);
}

// Twenty nodes of eight devices; one is lost every eight minutes, and one comes as often. To take one in pauses all for 110 s, which a node of
// twenty does not bring in until the next one comes; three of them do, though one of the 23 will be lost soon.
TEST(Decide, WhoComesIsTakenInWithOthers) {
  const Policy rule{.kind = PolicyKind::rule};
  Situation now{.now = 36'000};
  now.losses_per_device_second = 1.0 / (490 * 160), now.arrivals_last_hour = 7;
  for (int nodes = 20; nodes <= 21; ++nodes) {
    const double seconds = 20.0 / nodes;
    now.options.push_back({.response = nodes == 20 ? Response::stay : Response::replan,
                           .step_seconds = seconds,
                           .usual_seconds = seconds,
                           .doubt = 0.01,
                           .pause_seconds = nodes == 20 ? 0.0 : 110.0,
                           .devices = 8 * nodes});
  }
  EXPECT_EQ(choose(rule, now).option, 0u);
  for (int more = 2; more <= 3; ++more) {
    PlanOption option = now.options[1];
    option.devices = 8 * (20 + more), option.step_seconds = option.usual_seconds = 20.0 / (20 + more);
    now.options.push_back(option);
  }
  EXPECT_EQ(choose(rule, now).option, 3u);
  now.arrivals_last_hour = 0;  // nobody else will come for a while
  now.options.resize(2);
  EXPECT_EQ(choose(rule, now).option, 1u);
}

// 0.4 of 1.5 s are gained a step: a pause of a minute is too long for the last three minutes.
TEST(Decide, AChangeHasToPayBeforeTheRunEnds) {
  const Policy rule{.kind = PolicyKind::rule};
  Situation now = slow_device(3600, 60);
  now.run_left = 1800;
  EXPECT_EQ(choose(rule, now).option, 1u);
  now.run_left = 180;
  EXPECT_EQ(choose(rule, now).option, 0u);
}

TEST(Decide, MalleusAnswersDevicesAlone) {
  Situation now = slow_device(60, 1);
  EXPECT_EQ(choose({.kind = PolicyKind::malleus}, now).option, 1u);
  now.conditions.front().cause = Cause::link;
  EXPECT_EQ(choose({.kind = PolicyKind::malleus}, now).option, 0u);
  EXPECT_EQ(choose({.kind = PolicyKind::threshold}, now).option, 1u);
}

RC_GTEST_PROP(Decide, EveryPolicyAnswersEverySituation, ()) {
  Situation now;
  const int count = any_in(1, 6);
  for (int i = 0; i < count; ++i)
    now.options.push_back({static_cast<Response>(any_in(0, 5)), any_in(0, 30) / 10.0, any_in(1, 30) / 10.0,
                           0.05, any_in(0, 50) / 1.0, any_in(1, 64)});
  for (int c = any_in(0, 3); c > 0; --c)
    now.conditions.push_back(
        {static_cast<Cause>(any_in(0, 7)), any_in(10, 50) / 10.0, any_in(0, 10'000) / 1.0});
  const bool can_any = std::any_of(now.options.begin(), now.options.end(),
                                   [](const PlanOption& o) { return o.step_seconds > 0; });
  for (const std::string& word : policy_words()) {
    const Choice choice = choose(parse_policy(word, "--policy"), now);
    RC_ASSERT(choice.option < now.options.size());
    // Nobody leaves a plan that runs for one that cannot, and nobody but never stands still where something can run.
    if (choice.option != 0 || (can_any && word != "never"))
      RC_ASSERT(now.options[choice.option].step_seconds > 0);
  }
}

TEST(Lifetime, RestGrowsWithAge) {
  for (const Cause cause : {Cause::device, Cause::link}) {
    const Lifetime lifetime = usual_lifetime(cause);
    const double mean = lifetime.median * std::exp(lifetime.spread * lifetime.spread / 2);
    // A new one lasts the mean; the sum's steps of 1 s are fine against a median of minutes: 2 %.
    EXPECT_NEAR(expected_rest(lifetime, 0, 1e7) / mean, 1, 0.02);
    EXPECT_GT(expected_rest(lifetime, 3600, 1e7), expected_rest(lifetime, 60, 1e7));
  }
  EXPECT_EQ(expected_rest(usual_lifetime(Cause::heavy_stage), 1, 500), 500);
}

RC_GTEST_PROP(Trial, NobodyBeatsHindsight, ()) {
  TrialCase one;
  const int modes = any_in(1, 4), segments = any_in(1, 8);
  for (int m = 0; m < modes; ++m) {
    one.modes.push_back({Response::replan, 8, 1, any_in(0, 100) / 10.0});
    one.modes.back().undone_steps = any_in(0, 2) == 0 ? any_in(1, 400) : 0;
  }
  double at = 0;
  for (int s = 0; s < segments; ++s) {
    TrialSegment segment{at, at + any_in(1, 500), {}, any_in(0, 3) == 0, {}};
    for (int m = 0; m < modes; ++m)
      segment.step_seconds.push_back(any_in(0, 4) == 0 ? 0 : any_in(5, 30) / 10.0);
    if (any_in(0, 1) == 1) segment.conditions = {{Cause::device, 2, 0}};
    at = segment.end;
    one.segments.push_back(segment);
  }
  if (any_in(0, 1) == 1) one.first_mode = 0;
  const double best = hindsight(one).useful_steps;
  for (const std::string& word : policy_words()) {
    const TrialOutcome outcome = run_trial(parse_policy(word, "--policy"), one);
    RC_ASSERT(outcome.useful_steps <= best * (1 + 1e-9) + 1e-9);
    RC_ASSERT(outcome.seconds_lost <= at + 1e-9);
  }
}

// A plan that is likely a little better, but may be much worse, is tried only where the budget covers what that may cost.
TEST(Decide, ATryCostsWhatItMayLose) {
  const Policy rule{.kind = PolicyKind::rule};
  Situation now = slow_device(10, 0.1);
  now.options[0].step_seconds = 0.2, now.options[0].usual_seconds = 0.2;
  now.options[1].step_seconds = 0.19, now.options[1].usual_seconds = 0.19, now.options[1].doubt = 0.4;
  now.exploration_left =
      0.5;  // more than the pause: but it may take 0.4 x 25 steps x 0.2 s longer until that shows
  EXPECT_EQ(choose(rule, now).option, 0u);
  now.options[1].doubt = 0.01;
  EXPECT_EQ(choose(rule, now).option, 1u) << "that is nearly sure";
  now.options[1].doubt = 0.4, now.exploration_left = 2.3;
  EXPECT_EQ(choose(rule, now).option, 1u) << "a long run can afford it: 0.2 s of pauses and 2 s of steps";
}

TEST(Scenario, TimeLinesReadBack) {
  const Cluster cluster(standard_cluster("h100x64"));
  const TimeLine line = random_time_line(
      cluster, 86'400, {.device_per_hour = 0.01, .host_per_hour = 0.01, .link_per_hour = 0.05}, 3);
  EXPECT_GT(line.conditions.size(), 10u);
  EXPECT_EQ(parse_time_line(to_json(line).dump(), "line"), line);
  OrderedJson bad = to_json(line);
  bad["conditions"][0]["factor"] = 0.5;
  EXPECT_THROW((void)parse_time_line(bad.dump(), "line"), UserError);
  bad = to_json(line), bad["conditions"][0]["cause"] = "memory";
  EXPECT_THROW((void)parse_time_line(bad.dump(), "line"), UserError);
  TimeLine with_losses = line;
  with_losses.losses = {{3, 600, 1200}, {0, 86'000, 1e6}};
  EXPECT_EQ(parse_time_line(to_json(with_losses).dump(), "line"), with_losses);
  for (const auto& [key, value] :
       std::map<std::string, double>{{"where", -1}, {"at", 1e6}, {"for", -1}, {"node", 1}}) {
    bad = to_json(with_losses), bad["losses"][0][key] = value;
    EXPECT_THROW((void)parse_time_line(bad.dump(), "line"), UserError) << key;
  }
  bad = to_json(line), bad["losess"] = OrderedJson::array();
  EXPECT_THROW((void)parse_time_line(bad.dump(), "line"), UserError);
}

struct SmallRun {
  ModelSpec model = *find_preset("gpt2");
  Cluster cluster;
  Plan plan;
  explicit SmallRun(int pp, int dp, const char* machines = "v100x8") : cluster(standard_cluster(machines)) {
    UniformPlan shape{.pp = pp, .dp = dp, .microbatch = 1, .batch = 64, .sequence_length = 512};
    plan = uniform_plan(model, shape);
  }
  Demand demand() const {
    Demand result{model, cluster, our_software(), fitted_constants()};
    result.batch = 64, result.sequence_length = 512;
    return result;
  }
};

TEST(Respond, SequencesGoWhereSpeedIs) {
  const SmallRun run(2, 4);
  std::vector<double> speeds(8, 1);
  speeds[2] = 0.5;
  const std::optional<Plan> shared = shared_by_speed(run.plan, speeds);
  ASSERT_TRUE(shared);
  EXPECT_EQ(problem_in(*shared, run.model), std::nullopt);
  ASSERT_EQ(shared->pipelines.size(), 2u);
  const auto sequences = [&](std::size_t p) {
    return std::accumulate(shared->pipelines[p].microbatches.begin(), shared->pipelines[p].microbatches.end(),
                           0);
  };
  EXPECT_EQ(sequences(0) + sequences(1), 64);
  EXPECT_EQ(sequences(0), 9);  // 64 x 0.5 / 3.5 = 9.1
  EXPECT_FALSE(shared_by_speed(run.plan, std::vector<double>(8, 1)));
}

// Copies with one micro-batch each have no smaller ones to deal: their sizes change.
TEST(Respond, OneMicrobatchIsSharedToo) {
  SmallRun run(1, 4);
  run.plan = uniform_plan(run.model, {.dp = 4, .microbatch = 8, .batch = 32, .sequence_length = 512});
  const std::optional<Plan> shared = shared_by_speed(run.plan, {1, 1, 0.5, 1});
  ASSERT_TRUE(shared);
  EXPECT_EQ(problem_in(*shared, run.model), std::nullopt);
  ASSERT_EQ(shared->pipelines.size(), 2u);
  EXPECT_EQ(shared->pipelines[0].microbatches, std::vector<int>{5});  // 32 x 0.5 / 3.5 = 4.6
  EXPECT_EQ(shared->pipelines[1].microbatches, std::vector<int>{27});
}

TEST(Respond, InterleavedStagesAreCutIntoPlainOnes) {
  SmallRun run(2, 1);
  run.plan = uniform_plan(run.model, {.pp = 2,
                                      .chunks = 2,
                                      .microbatch = 1,
                                      .batch = 64,
                                      .sequence_length = 512,
                                      .schedule = Schedule::interleaved});
  ASSERT_EQ(problem_in(run.plan, run.model), std::nullopt);
  const std::optional<Plan> cut = cut_by_speed(run.plan, run.model, {1, 0.4}, {});
  ASSERT_TRUE(cut);
  EXPECT_EQ(problem_in(*cut, run.model), std::nullopt);
  EXPECT_EQ(cut->schedule, Schedule::one_f_one_b);
  EXPECT_GT(cut->pipelines[0].stages[0].chunks[0].end(), run.plan.num_blocks / 2 + 1);
}

TEST(Respond, ShardedStateIsHeldOnceOrTwice) {
  const ModelSpec model = *find_preset("gpt2");
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  EXPECT_EQ(with_other_redundancy(uniform_plan(model, shape), {0, 0, 1, 1}), std::nullopt);
  shape.strategy.zero = 1;
  const Plan once = uniform_plan(model, shape);
  const auto twice = with_other_redundancy(once, {0, 0, 1, 1});
  ASSERT_TRUE(twice.has_value());
  EXPECT_EQ(twice->buddy, 2) << "on the other node";
  EXPECT_EQ(with_other_redundancy(*twice, {0, 0, 1, 1}), once);
}

TEST(Respond, LayersGoWhereSpeedIs) {
  const SmallRun run(4, 2);
  std::vector<double> speeds(8, 1);
  speeds[3] = 0.5;  // of stage 1
  const std::optional<Plan> cut = cut_by_speed(run.plan, run.model, speeds, {});
  ASSERT_TRUE(cut);
  EXPECT_EQ(problem_in(*cut, run.model), std::nullopt);
  const auto layers = [&](std::size_t s) {
    return cut->pipelines[0].stages[s].chunks[0].runs[0].count - (s == 0 || s == 3);
  };
  EXPECT_LT(layers(1), layers(0));
  EXPECT_LE(layers(3), layers(2));  // the head counts
}

TEST(Respond, AnswersAreBetterWhereADeviceIsSlow) {
  const SmallRun run(1, 8);
  const std::vector<PlannedOption> options = responses(run.demand(), run.plan, {{Cause::device, 5, 3}}, {});
  ASSERT_GE(options.size(), 3u);
  EXPECT_EQ(options.front().plan, run.plan);
  double best = options.front().option.step_seconds;
  bool has_share = false, has_drop = false;
  for (const PlannedOption& one : options) {
    EXPECT_EQ(problem_in(one.plan, run.model), std::nullopt);
    best = std::min(best, one.option.step_seconds);
    has_share |= one.option.response == Response::share, has_drop |= one.option.response == Response::drop;
  }
  EXPECT_TRUE(has_share && has_drop);
  // Alone at a third of its speed the device makes all wait three times as long; eight sevenths is what its loss would cost.
  EXPECT_LT(best, 0.6 * options.front().option.step_seconds);
}

TEST(Respond, RuleGainsWhatThereIsToGain) {
  const SmallRun run(1, 8);
  const Demand demand = run.demand();
  const TimeLine line{3600, {{{Cause::device, 5, 3}, 600, 1800}}};
  const TrialCase trial = trial_of(line, demand, run.plan, {});
  const double never = run_trial({.kind = PolicyKind::never}, trial).useful_steps,
               rule = run_trial({.kind = PolicyKind::rule}, trial).useful_steps,
               best = hindsight(trial).useful_steps;
  // Of what the condition costs, at least 70 % is won back.
  EXPECT_GT(rule - never, 0.7 * (best - never));
  EXPECT_LE(rule, best);
}

// A node goes while a device of another is slow: plans for those who are there, nothing but them runs, and everything is as before
// when it is back.
TEST(Respond, LossesAndConditionsInOneTimeLine) {
  const SmallRun run(1, 16, "v100x16");
  const Demand demand = run.demand();
  const TimeLine line{4000, {{{Cause::device, 5, 3}, 1000, 2000}}, {{1, 2000, 1000}}};
  const TrialCase trial = trial_of(line, demand, run.plan, {});
  ASSERT_EQ(trial.segments.size(), 4u) << "quiet, slow, slow without the node, quiet";
  const auto seconds = [&](std::size_t segment, std::size_t mode) {
    return trial.segments[segment].step_seconds[mode];
  };
  for (std::size_t s = 0; s < 4; ++s) EXPECT_EQ(trial.segments[s].is_loss, s == 2);
  EXPECT_GT(seconds(1, 0), 1.5 * seconds(0, 0)) << "its slow device";
  EXPECT_EQ(seconds(2, 0), 0) << "its node is gone";
  EXPECT_EQ(seconds(3, 0), seconds(0, 0));
  int num_left = 0;
  for (std::size_t m = 0; m < trial.modes.size(); ++m)
    if (seconds(2, m) > 0) {
      ++num_left;
      EXPECT_LE(trial.modes[m].devices, 8);
      EXPECT_GT(seconds(0, m), 0) << "runs as well when all are there";
    }
  EXPECT_GT(num_left, 1);
  const TrialOutcome never = run_trial({.kind = PolicyKind::never}, trial),
                     rule = run_trial({.kind = PolicyKind::rule}, trial), best = hindsight(trial);
  EXPECT_EQ(rule.steps_lost, 1);
  EXPECT_LT(never.useful_steps, rule.useful_steps);
  EXPECT_LE(rule.useful_steps, best.useful_steps);
  EXPECT_GT(rule.useful_steps, 0.9 * best.useful_steps);
  EXPECT_THROW((void)trial_of(TimeLine{100, {}, {{2, 10, 10}}}, demand, run.plan, {}), UserError);
  const TrialCase nobody = trial_of(TimeLine{100, {}, {{0, 10, 10}, {1, 10, 10}}}, demand, run.plan, {});
  ASSERT_EQ(nobody.segments.size(), 3u);
  EXPECT_EQ(nobody.segments[1].step_seconds, std::vector<double>(nobody.modes.size(), 0));
}

// A line may begin without a node, and end without any; a plan that does without the node loses nothing with it.
TEST(Respond, LossesOfThoseWhoAreNotThereOrNotUsed) {
  const SmallRun run(1, 16, "v100x16"), small(1, 8);
  const Demand demand = run.demand();
  const TrialCase begins = trial_of(TimeLine{1000, {}, {{1, 0, 400}}}, demand, run.plan, {});
  ASSERT_EQ(begins.segments.size(), 2u);
  EXPECT_EQ(begins.modes[0].devices, 16) << "the plan that was asked for";
  EXPECT_EQ(begins.segments[0].step_seconds[0], 0);
  EXPECT_GT(begins.segments[1].step_seconds[0], 0);
  EXPECT_GT(run_trial({.kind = PolicyKind::rule}, begins).useful_steps, 0);

  const TrialCase spare = trial_of(TimeLine{1000, {}, {{1, 400, 100}}}, demand, small.plan, {});
  for (const TrialSegment& segment : spare.segments) EXPECT_GT(segment.step_seconds[0], 0) << "node 0 alone";
  EXPECT_EQ(run_trial({.kind = PolicyKind::never}, spare).steps_lost, 0);
  EXPECT_EQ(run_trial({.kind = PolicyKind::never}, spare).seconds_lost, 0);

  const TrialCase nobody = trial_of(TimeLine{1000, {}, {{0, 0, 1e6}}}, small.demand(), small.plan, {});
  EXPECT_EQ(run_trial({.kind = PolicyKind::rule}, nobody).useful_steps, 0);
  EXPECT_EQ(hindsight(nobody).useful_steps, 0);

  HardwareProfile halves = run.cluster.profile();
  halves.missing_devices = {4, 5, 6, 7, 12, 13, 14, 15};
  const Cluster half(halves);
  const TrialCase left = trial_of(TimeLine{1000, {}, {{1, 400, 100}}},
                                  demand_on(demand, half, fitted_constants()), small.plan, {});
  const std::vector<double>& without_node = left.segments[1].step_seconds;
  EXPECT_TRUE(std::any_of(without_node.begin(), without_node.end(), [](double seconds) {
    return seconds > 0;
  })) << "four devices of the other node are there";
}

// Where no search is made, replicas without those who are gone go on.
TEST(Respond, LossesWithVeryManyDevices) {
  const SmallRun run(1, 32, "v100x32");
  const Demand demand = run.demand();
  const TimeLine line{3000, {}, {{1, 1000, 1000}, {3, 1500, 1500}}};
  const TrialCase trial = trial_of(line, demand, run.plan, {}, {.searched_devices = 16});
  ASSERT_EQ(trial.segments.size(), 4u);
  const std::vector<int> expected = {32, 24, 16, 24};
  for (std::size_t s = 0; s < 4; ++s) {
    int most = 0;
    for (std::size_t m = 0; m < trial.modes.size(); ++m)
      if (trial.segments[s].step_seconds[m] > 0) most = std::max(most, trial.modes[m].devices);
    EXPECT_EQ(most, expected[s]) << s;
  }
  EXPECT_TRUE(is_loss_to(trial.segments[1], 0)) << "node 1 is one of its";
  for (std::size_t m = 0; m < trial.modes.size(); ++m)
    EXPECT_EQ(is_loss_to(trial.segments[2], static_cast<int>(m)), trial.segments[2].step_seconds[m] == 0)
        << "who goes on has lost nothing";
  EXPECT_GE(run_trial({.kind = PolicyKind::never}, trial).steps_lost, 1);
}

}  // namespace
}  // namespace optimus
