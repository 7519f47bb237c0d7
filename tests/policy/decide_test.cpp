// Policies, their history of losses, and timelines.
#include "policy/decide.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "cluster/standard.h"
#include "policy/lifetime.h"
#include "policy/membership_history.h"
#include "trials/timeline_trial.h"

namespace optimus {
namespace {

int any_in(int low, int high) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1)); }

// The present plan takes 1.5 s, another one 1.1 s, under a condition of this age.
Situation slow_device(double age, double pause) {
  Situation now;
  now.options = {
      {.response = Response::stay, .step_seconds = 1.5, .usual_seconds = 1},
      {.response = Response::share, .step_seconds = 1.1, .usual_seconds = 1.02, .pause_seconds = pause}};
  now.conditions = {{Cause::device, 1.5, age}};
  return now;
}

TEST(Decide, RuleComparesGainWithPause) {
  const Policy rule{.kind = PolicyKind::rule};
  EXPECT_EQ(choose(rule, slow_device(10, 1)).option, 1u);
  EXPECT_EQ(choose(rule, slow_device(10, 3000)).option, 0u);  // such a condition lasts ten minutes on average
  EXPECT_EQ(choose({.kind = PolicyKind::always_best}, slow_device(10, 3000)).option, 1u);
  EXPECT_EQ(choose({.kind = PolicyKind::never}, slow_device(10, 1)).option, 0u);
}

TEST(Decide, RuleAnswersOldConditionsFirst) {
  // A pause of two minutes is too long for a condition that has just begun, because it may end in seconds. It
  // is worth it for one that has lasted an hour.
  const Policy rule{.kind = PolicyKind::rule};
  EXPECT_EQ(choose(rule, slow_device(5, 120)).option, 0u);
  EXPECT_EQ(choose(rule, slow_device(3600, 120)).option, 1u);
}

TEST(Decide, RulePrefersLessExpensiveAnswers) {
  Situation now = slow_device(60, 1);
  now.options.push_back(
      {.response = Response::replan, .step_seconds = 1.09, .usual_seconds = 1, .pause_seconds = 1});
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 1u);
  now.options[2].step_seconds = 0.9;  // much faster, so its costs are justified
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 2u);
}

// The uncertainty of a condition's factor adds to the doubt of plans that use the slow device. Plans without
// the device do not depend on it.
TEST(Decide, RulePrefersCertainGains) {
  const Policy rule{.kind = PolicyKind::rule};
  Situation now = slow_device(60, 1);
  now.options.push_back({.response = Response::drop,
                         .step_seconds = 1.2,
                         .usual_seconds = 1.2,
                         .uncertainty = 0.02,
                         .pause_seconds = 1});
  now.options[1].uncertainty = 0.02;
  EXPECT_EQ(choose(rule, now).option, 1u);
  now.options[1].uncertainty = 0.4;  // 1.1 s may be 1.6 s
  EXPECT_EQ(choose(rule, now).option, 2u);
  now.options[2].uncertainty = 0.4;
  EXPECT_EQ(choose(rule, now).option, 0u) << "neither gain is certain";
}

TEST(Decide, ReturnsWhenGainIsMissed) {
  Situation now = slow_device(60, 1);
  now.options[1].response = Response::resume, now.options[1].step_seconds = 1.49;
  now.predicted_gain = 0.3, now.measured_gain = 0.01;
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 1u);
  now.options[1].step_seconds = 1.51;  // the earlier plan is no faster
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 0u);
  now.options[1].step_seconds = 1.49;
  now.measured_gain = 0.28;
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 0u);
}

// The earlier plans are the one from before the condition and the one from before the last switch.
TEST(Decide, ReturnsToFasterEarlierPlan) {
  Situation now = slow_device(60, 1);
  now.options[1].response = Response::resume, now.options[1].step_seconds = 1.4;
  now.options.push_back(now.options[1]);
  now.options[2].step_seconds = 1.2;
  now.predicted_gain = 0.3, now.measured_gain = -0.1;
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 2u);
  std::swap(now.options[1], now.options[2]);
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 1u);
  now.run_left = 1;  // the pause takes as long
  EXPECT_EQ(choose({.kind = PolicyKind::rule}, now).option, 0u);
}

// Without redundant copies, a plan of eight devices is 4 % faster, and a loss undoes 500 of its steps.
TEST(Decide, ComparesRedundantCopiesWithExpectedLosses) {
  const auto chosen = [](bool has_copies, double seconds_between_losses) {
    PlanOption copied{.response = Response::replan, .step_seconds = 1, .uncertainty = 0.005, .devices = 8};
    PlanOption bare = copied;
    bare.step_seconds = bare.usual_seconds = 0.96, bare.undone_steps = 500;
    copied.pause_seconds = bare.pause_seconds = 1;
    Situation now{.options = {has_copies ? copied : bare, has_copies ? bare : copied}};
    now.options.front().response = Response::stay, now.options.front().pause_seconds = 0;
    now.losses_per_device_second = 1 / (8 * seconds_between_losses);
    const bool moves = choose({.kind = PolicyKind::rule}, now).option == 1;
    return moves != has_copies;  // whether the chosen plan has copies
  };
  constexpr double kHour = 3600, kMonth = 30 * 24 * kHour;
  for (const bool has_copies : {false, true}) {
    EXPECT_TRUE(chosen(has_copies, kHour)) << "a loss per hour undoes 500 of 3600 steps";
    EXPECT_FALSE(chosen(has_copies, kMonth));
    // 500 steps in 4 h are 3.3 % of the work: the gain is below the least gain of a switch.
    EXPECT_EQ(chosen(has_copies, 4 * kHour), has_copies);
  }
}

// The first losses outweigh the prior, but one loss in the first minute does not yield a rate of one per
// minute.
TEST(Decide, EstimatesLossRateFromHistory) {
  MembershipHistory membership{.begin_time = 1000};
  const auto hours_between = [&](double now, ExpectedLifetime life = {}) {
    Situation situation;
    describe_membership(membership, now, 4, life, situation);
    EXPECT_EQ(situation.elapsed_seconds, now - 1000);
    return 1 / (4 * situation.losses_per_device_second) / 3600;
  };
  EXPECT_NEAR(hours_between(1000), 12'500, 1) << "of four devices";
  membership.losses.add(1060);
  EXPECT_GT(hours_between(1060), 1);
  EXPECT_LT(hours_between(1060), 1.5);
  for (int i = 1; i < 10; ++i) membership.losses.add(1060 + 360 * i);
  EXPECT_NEAR(hours_between(1000 + 3600), 0.225, 0.01)
      << "ten losses in an hour, and a prior of five device hours";
  EXPECT_GT(hours_between(4600, {.seconds = 1e6, .weight = 1}), 6)
      << "the user has given an expected lifetime";
  Situation situation;
  describe_membership(membership, 4600 + 1800, 4, {}, situation);
  EXPECT_EQ(situation.losses_last_hour, 5);
  EXPECT_EQ(situation.since_loss, 4600 + 1800 - (1060 + 360 * 9));
  EXPECT_EQ(situation.arrivals_last_hour, 0);
}

// Twenty nodes of eight devices. Every eight minutes one node is lost and one joins. A switch pauses all for
// 110 s, which one more node does not pay back before the next one joins. Three more nodes do, although one
// of the 23 will be lost soon.
TEST(Decide, WaitsForSeveralJoiningNodes) {
  const Policy rule{.kind = PolicyKind::rule};
  Situation now{.elapsed_seconds = 36'000};
  now.losses_per_device_second = 1.0 / (490 * 160), now.arrivals_last_hour = 7;
  for (int nodes = 20; nodes <= 21; ++nodes) {
    const double seconds = 20.0 / nodes;
    now.options.push_back({.response = nodes == 20 ? Response::stay : Response::replan,
                           .step_seconds = seconds,
                           .usual_seconds = seconds,
                           .uncertainty = 0.01,
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
  now.arrivals_last_hour = 0;  // no more nodes are expected for a while
  now.options.resize(2);
  EXPECT_EQ(choose(rule, now).option, 1u);
}

// The switch saves 0.4 of 1.5 s per step. A pause of one minute is too long for the last three minutes of the
// run.
TEST(Decide, SwitchMustPayOffBeforeTheRunEnds) {
  const Policy rule{.kind = PolicyKind::rule};
  Situation now = slow_device(3600, 60);
  now.run_left = 1800;
  EXPECT_EQ(choose(rule, now).option, 1u);
  now.run_left = 180;
  EXPECT_EQ(choose(rule, now).option, 0u);
}

TEST(Decide, MalleusAnswersOnlySlowDevices) {
  Situation now = slow_device(60, 1);
  EXPECT_EQ(choose({.kind = PolicyKind::malleus}, now).option, 1u);
  now.conditions.front().cause = Cause::link;
  EXPECT_EQ(choose({.kind = PolicyKind::malleus}, now).option, 0u);
  EXPECT_EQ(choose({.kind = PolicyKind::threshold}, now).option, 1u);
}

RC_GTEST_PROP(Decide, EveryPolicyMakesValidChoices, ()) {
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
    // No policy chooses an option that cannot run if another one can. Only `never` may keep a plan that
    // cannot run.
    if (choice.option != 0 || (can_any && word != "never"))
      RC_ASSERT(now.options[choice.option].step_seconds > 0);
  }
}

TEST(Lifetime, RestGrowsWithAge) {
  for (const Cause cause : {Cause::device, Cause::link}) {
    const Lifetime lifetime = usual_lifetime(cause);
    const double mean = lifetime.median * std::exp(lifetime.spread * lifetime.spread / 2);
    // The expected rest of a new condition is the mean. The integration steps of 1 s are small relative to a
    // median of minutes: tolerance 2 %.
    EXPECT_NEAR(expected_remaining_seconds(lifetime, 0, 1e7) / mean, 1, 0.02);
    EXPECT_GT(expected_remaining_seconds(lifetime, 3600, 1e7), expected_remaining_seconds(lifetime, 60, 1e7));
  }
  EXPECT_EQ(expected_remaining_seconds(usual_lifetime(Cause::heavy_stage), 1, 500), 500);
}

RC_GTEST_PROP(Trial, NoPolicyBeatsHindsight, ()) {
  TrialCase trial_case;
  const int modes = any_in(1, 4), segments = any_in(1, 8);
  for (int m = 0; m < modes; ++m) {
    trial_case.modes.push_back({Response::replan, 8, 1, any_in(0, 100) / 10.0});
    trial_case.modes.back().undone_steps = any_in(0, 2) == 0 ? any_in(1, 400) : 0;
  }
  double at = 0;
  for (int s = 0; s < segments; ++s) {
    TrialSegment segment{at, at + any_in(1, 500), {}, any_in(0, 3) == 0, {}};
    for (int m = 0; m < modes; ++m)
      segment.step_seconds.push_back(any_in(0, 4) == 0 ? 0 : any_in(5, 30) / 10.0);
    if (any_in(0, 1) == 1) segment.conditions = {{Cause::device, 2, 0}};
    at = segment.end;
    trial_case.segments.push_back(segment);
  }
  if (any_in(0, 1) == 1) trial_case.first_mode = 0;
  const double best = hindsight(trial_case).useful_steps;
  for (const std::string& word : policy_words()) {
    const TrialOutcome outcome = run_trial(parse_policy(word, "--policy"), trial_case);
    RC_ASSERT(outcome.useful_steps <= best * (1 + 1e-9) + 1e-9);
    RC_ASSERT(outcome.seconds_lost <= at + 1e-9);
  }
}

// A plan that is probably slightly faster, but may be much slower, is tried only if the exploration budget
// covers the possible cost.
TEST(Decide, TriesDoubtfulOptionsWithinBudget) {
  const Policy rule{.kind = PolicyKind::rule};
  Situation now = slow_device(10, 0.1);
  now.options[0].step_seconds = 0.2, now.options[0].usual_seconds = 0.2;
  now.options[1].step_seconds = 0.19, now.options[1].usual_seconds = 0.19, now.options[1].uncertainty = 0.4;
  // More than the pause, but less than 0.4 x 25 steps x 0.2 s of slower steps until the loss is measured.
  now.exploration_left = 0.5;
  EXPECT_EQ(choose(rule, now).option, 0u);
  now.options[1].uncertainty = 0.01;
  EXPECT_EQ(choose(rule, now).option, 1u) << "the gain is nearly certain";
  now.options[1].uncertainty = 0.4, now.exploration_left = 2.3;
  EXPECT_EQ(choose(rule, now).option, 1u) << "the budget covers 0.2 s of pauses and 2 s of slower steps";
}

TEST(Scenario, TimeLineRoundTrip) {
  const Cluster cluster(standard_cluster("h100x64"));
  const ConditionTimeline line = random_timeline(
      cluster, 86'400, {.device_per_hour = 0.01, .host_per_hour = 0.01, .link_per_hour = 0.05}, 3);
  EXPECT_GT(line.conditions.size(), 10u);
  EXPECT_EQ(parse_timeline(to_json(line).dump(), "line"), line);
  OrderedJson bad = to_json(line);
  bad["conditions"][0]["factor"] = 0.5;
  EXPECT_THROW((void)parse_timeline(bad.dump(), "line"), UserError);
  bad = to_json(line), bad["conditions"][0]["cause"] = "memory";
  EXPECT_THROW((void)parse_timeline(bad.dump(), "line"), UserError);
  ConditionTimeline with_losses = line;
  with_losses.losses = {{3, 600, 1200}, {0, 86'000, 1e6}};
  EXPECT_EQ(parse_timeline(to_json(with_losses).dump(), "line"), with_losses);
  for (const auto& [key, value] :
       std::map<std::string, double>{{"where", -1}, {"at", 1e6}, {"for", -1}, {"node", 1}}) {
    bad = to_json(with_losses), bad["losses"][0][key] = value;
    EXPECT_THROW((void)parse_timeline(bad.dump(), "line"), UserError) << key;
  }
  bad = to_json(line), bad["losess"] = OrderedJson::array();
  EXPECT_THROW((void)parse_timeline(bad.dump(), "line"), UserError);
}

}  // namespace
}  // namespace optimus
