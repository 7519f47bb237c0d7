// What is slow, and what is done about it.
#include "adapt/adaptation_fixture.h"
#include "plan/describe.h"

namespace optimus {
namespace {

// Devices were lost three times in ten minutes, and this plan's state is on one device each: a second copy is worth its price, which is 1 %
// here. Where none was lost in a month it is not, and 1 % is not worth a change either.
TEST_F(AdaptationControllerTest, StateIsHeldTwiceWhereDevicesAreLost) {
  looks_for_better_ = true;
  undone_steps_ = [](const Plan& plan, double) { return plan.buddy > 0 ? 0.0 : 2000.0; };
  UniformPlan shape{.dp = 4, .microbatch = 16, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  constexpr double kBegan = 10'000, kMonth = 30 * 86'400;
  const auto buddy_after = [&](int buddy, int losses, double seconds) {
    calibration_ = Calibration(), comings_ = {.began = kBegan}, now_ = kBegan + seconds;
    for (int i = 0; i < losses; ++i) comings_.losses.add(kBegan + 200 * i);
    begin(shape, 4, {4, 4});
    Plan first = plan_;
    first.buddy = buddy;
    plan_ = first;
    controller_->plan_adopted(plan_, std::nullopt, step_), imagine();
    for (int i = 0; i < 2; ++i) (void)steps(60);
    return plan_.buddy;
  };
  EXPECT_GT(buddy_after(0, 3, 600), 0) << short_text(plan_);
  EXPECT_LT(realised_.value_or(1), 0) << "steps are a little slower, and that is no reason to go back";
  EXPECT_GT(buddy_after(1, 3, 600), 0) << short_text(plan_);
  EXPECT_GT(buddy_after(1, 0, kMonth), 0) << short_text(plan_);
  EXPECT_EQ(buddy_after(0, 0, kMonth), 0) << short_text(plan_);
}

// A plan is some steps old when a device becomes slow: nobody waits until it is known what the plan was worth.
TEST_F(AdaptationControllerTest, WhatBeginsBehindAChangeIsAnsweredAtOnce) {
  looks_for_better_ = true;
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  ASSERT_TRUE(steps(60).has_value());
  least_seconds_ = 0;
  ASSERT_FALSE(steps(5).has_value());
  set({{Cause::device, 2, 3}});
  const std::int64_t begin = step_;
  const auto wish = steps(60);
  ASSERT_TRUE(wish.has_value());
  EXPECT_EQ(wish->cause, "device");
  EXPECT_LE(step_ - begin, 12) << "found within ten";
}

// It seems to bring nothing, because the networks of all have become slow in that moment.
TEST_F(AdaptationControllerTest, APlanIsNotBlamedForWhatBeganSince) {
  looks_for_better_ = true;
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  const Plan first = plan_;
  ASSERT_TRUE(steps(60).has_value());
  ASSERT_FALSE(steps(6).has_value());
  set({{Cause::link, 0, 20}, {Cause::link, 1, 20}, {Cause::link, 2, 20}, {Cause::link, 3, 20}});
  for (int i = 0; i < 60; ++i) {
    if (const auto wish = steps(1)) {
      EXPECT_NE(wish->plan, first) << wish->why;
      break;
    }
    EXPECT_EQ(realised_, std::nullopt) << "it is not known what it was worth";
  }
}

// Nobody measures for ten steps what was foretold.
TEST_F(AdaptationControllerTest, TheOracleKnowsWhatComes) {
  const Condition slow{Cause::device, 2, 3};
  foretold_ = ScriptedConditions{{1000, {{slow, 100, 200}}}, 0};
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4, {4, 4}, PolicyKind::oracle);
  const auto steps_until = [&](double seconds) {
    std::optional<PlanProposal> wish;
    while (now_ < seconds && !wish) {
      conditions_.clear();
      if (now_ >= 100 && now_ < 300) conditions_ = {slow};
      set(conditions_), wish = steps(1);
    }
    return wish;
  };
  EXPECT_EQ(steps_until(98), std::nullopt);
  const auto wish = steps_until(300);
  ASSERT_TRUE(wish.has_value());
  EXPECT_EQ(wish->cause, "device");
  EXPECT_LE(now_, 103) << "at once";
  EXPECT_EQ(steps_until(297), std::nullopt);
  ASSERT_TRUE(steps_until(400).has_value()) << "back";
  EXPECT_LE(now_, 304);
}

TEST_F(AdaptationControllerTest, NothingIsWishedForWhereNothingHappens) {
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  EXPECT_FALSE(steps(300).has_value());
  EXPECT_TRUE(controller_->findings().empty());
}

TEST_F(AdaptationControllerTest, ASlowDeviceGetsLessToDoUntilItIsItselfAgain) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  begin(shape, 4, {4, 4});
  ASSERT_FALSE(steps(60).has_value());
  const double healthy = run_->step_seconds();
  set({{Cause::device, 2, 2}});
  const double slow = run_->step_seconds();
  const auto wish = steps(30);
  ASSERT_TRUE(wish.has_value());
  EXPECT_EQ(wish->cause, "device");
  EXPECT_NE(wish->why.find("slow device 2"), std::string::npos) << wish->why;
  EXPECT_NEAR(wish->predicted_gain, slow / run_->step_seconds() - 1, 0.1) << short_text(plan_);
  // Half a device of four is gone: 8 / 7 of the healthy step would be perfect.
  EXPECT_LT(run_->step_seconds(), 1.25 * healthy) << short_text(plan_);

  EXPECT_FALSE(steps(40).has_value()) << "it stays there while the device is slow";
  ASSERT_TRUE(realised_.has_value());
  EXPECT_NEAR(*realised_, wish->predicted_gain, 0.1);

  set({});
  const auto back = steps(60);
  ASSERT_TRUE(back.has_value()) << "the new plan's ranks are known to be quicker than usual";
  EXPECT_EQ(back->cause, "");
  EXPECT_LE(run_->step_seconds(), healthy) << "the first plan, or one that is better: " << short_text(plan_);
  EXPECT_FALSE(steps(200).has_value()) << short_text(plan_);
}

// What it takes to weigh and prepare an answer is over when the device counts as slow.
TEST_F(AdaptationControllerTest, AnAnswerIsWeighedBeforeItIsSure) {
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  ASSERT_EQ(steps(40), std::nullopt);
  EXPECT_EQ(num_suspicions_, 0);
  set({{Cause::device, 2, 2.5}});
  const std::int64_t begin = step_;
  const auto wish = steps(20);
  ASSERT_TRUE(wish.has_value());
  EXPECT_EQ(num_suspicions_, 1);
  EXPECT_EQ(num_wrong_, 0);
  EXPECT_EQ(step_ - begin, DetectorOptions{}.quick_window);
  EXPECT_EQ(steps(40), std::nullopt);
  ASSERT_TRUE(realised_.has_value());  // against steps under the condition, not those before it
  EXPECT_NEAR(*realised_, wish->predicted_gain, 0.2);
}

TEST_F(AdaptationControllerTest, ASuspicionThatPassesChangesNothing) {
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  ASSERT_EQ(steps(40), std::nullopt);
  for (int i = 0; i < 5; ++i) {  // every 20 seconds
    set({{Cause::device, 2, 2.5}});
    EXPECT_EQ(steps(5), std::nullopt);
    set({});
    EXPECT_EQ(steps(15), std::nullopt);
  }
  EXPECT_EQ(num_suspicions_, num_wrong_);
  EXPECT_EQ(num_suspicions_, 2);  // the second waits for 30 seconds, the third would for 60
}

// The plan for a device at 4x is not the one for 1.6x.
TEST_F(AdaptationControllerTest, ASuspicionOfAnotherSeverityIsWrong) {
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  ASSERT_EQ(steps(40), std::nullopt);
  set({{Cause::device, 2, 4}});
  ASSERT_EQ(steps(5), std::nullopt);
  EXPECT_EQ(num_suspicions_, 1);
  set({{Cause::device, 2, 1.6}});
  const auto wish = steps(20);
  ASSERT_TRUE(wish.has_value());
  EXPECT_EQ(num_wrong_, 1);
  EXPECT_FALSE(wish->is_provisional);
}

// It says how sure it was, or that the rule has decided, and why.
TEST_F(AdaptationControllerTest, TheLearnedPolicyDecidesToo) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  begin(shape, 4, {4, 4}, PolicyKind::learned);
  EXPECT_FALSE(steps(60).has_value());
  const double healthy = run_->step_seconds();
  set({{Cause::device, 2, 2}});
  const auto wish = steps(60);
  ASSERT_TRUE(wish.has_value());
  EXPECT_TRUE(wish->why.find("learned, sure to") != std::string::npos ||
              wish->why.find("the rule decides") != std::string::npos)
      << wish->why;
  EXPECT_LT(run_->step_seconds(), 1.25 * healthy) << short_text(plan_);
}

// What copies would take depends on sums between nodes, which no step of a pipeline shows.
TEST_F(AdaptationControllerTest, WhatNoStepShowsIsMeasuredBeforeItIsBelieved) {
  const auto gain_of_copies = [&](double ring) -> std::optional<double> {
    ring_ = ring, calibration_ = Calibration(), is_any_grid_ = true;
    begin({.pp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
    const auto wish = steps(100);
    EXPECT_TRUE(wish.has_value()) << "a stage is too heavy";
    for (const PlanAlternative& one : wish ? wish->alternatives : std::vector<PlanAlternative>())
      if (one.plan.find("dp4") != std::string::npos) return one.predicted_gain;
    return std::nullopt;  // not among the best few
  };
  const auto usual = gain_of_copies(1), slow = gain_of_copies(30);
  EXPECT_EQ(num_probes_, 2);
  ASSERT_TRUE(usual.has_value()) << "copies were weighed";
  EXPECT_LT(slow.value_or(-1), *usual - 0.1);
}

// From the begin: the last stage has the head besides its layers.
TEST_F(AdaptationControllerTest, AStageThatIsTooHeavyIsCutAnew) {
  begin({.pp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  const double first = run_->step_seconds();
  const auto wish = steps(100);
  ASSERT_TRUE(wish.has_value());
  EXPECT_EQ(wish->cause, "heavy_stage");
  EXPECT_NEAR(wish->predicted_gain, first / run_->step_seconds() - 1, 0.02) << short_text(plan_);
  EXPECT_GT(wish->predicted_gain, 0.02);
}

TEST_F(AdaptationControllerTest, ASlowDeviceOfAPipelineGetsFewerLayers) {
  begin({.pp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  for (int i = 0; i < 3; ++i) (void)steps(100);  // it may find a better plan first
  const double healthy = run_->step_seconds();
  set({{Cause::device, 1, 1.6}});
  const double slow = run_->step_seconds();
  ASSERT_TRUE(steps(60).has_value());
  EXPECT_LT(run_->step_seconds(), healthy + 0.5 * (slow - healthy)) << short_text(plan_);
}

// With its one layer it is quick enough not to show; with more it would not be. A look at it tells when it is well.
TEST_F(AdaptationControllerTest, ADeviceThatItsAnswerHidesIsStillSlow) {
  least_seconds_ = 0.5;
  begin({.pp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  (void)steps(60);  // the head makes the last stage too heavy
  ASSERT_EQ(steps(40), std::nullopt);
  const double healthy = run_->step_seconds();
  set({{Cause::device, 1, 2.5}});
  ASSERT_TRUE(steps(40).has_value());
  hidden_ = {{Cause::device, 1, 2.5}}, set({});
  EXPECT_EQ(steps(200), std::nullopt);
  EXPECT_GT(num_probes_, 2);
  hidden_.clear();
  const auto back = steps(120);
  ASSERT_TRUE(back.has_value());
  EXPECT_LT(run_->step_seconds(), 1.05 * healthy) << short_text(plan_);
}

// The planner leaves it out, and nobody sees then how it is.
TEST_F(AdaptationControllerTest, ADeviceThatIsLeftOutIsTriedAgain) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  begin(shape, 4);
  are_probes_answered_ = false;
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::device, 2, 5}});
  // It may get less to do first.
  const auto steps_until = [&](int devices, int count) {
    const double begin = now_;
    for (int i = 0; i < 3 && num_devices(plan_) != devices; ++i) (void)steps(count);
    EXPECT_EQ(num_devices(plan_), devices);
    return now_ - begin;
  };
  EXPECT_LT(steps_until(3, 60), 150);
  const double first = steps_until(4, 3000);
  EXPECT_GT(first, 300) << "such conditions last for minutes";
  EXPECT_LT(steps_until(3, 60), 150) << "it is as slow as before";
  EXPECT_GT(steps_until(4, 6000), 1.5 * first) << "the next try comes later";
}

TEST_F(AdaptationControllerTest, ADeviceThatIsLeftOutIsLookedAtAndComesBackWhenItIsWell) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  begin(shape, 4);
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::device, 2, 5}});
  for (int i = 0; i < 3 && num_devices(plan_) != 3; ++i) (void)steps(60);  // it may get less to do first
  ASSERT_EQ(num_devices(plan_), 3);
  num_probes_ = 0;
  for (int i = 0; i < 4; ++i) (void)steps(500);
  EXPECT_EQ(num_devices(plan_), 3) << "it is still slow";
  EXPECT_GE(num_probes_, 3);
  // 2,000 s, 20 to 60 between two looks: sqrt(2 * 0.2 / (0.25 * chance)), which is 0.004 a second in the first minutes and 0.0007 then.
  EXPECT_LE(num_probes_, 80);
  num_wrong_looks_ = 1;
  const int before = num_probes_;
  for (int i = 0; i < 2; ++i) (void)steps(100);
  EXPECT_EQ(num_wrong_looks_, 0);
  EXPECT_GE(num_probes_, before + 2) << "what one look says is looked at again";
  EXPECT_EQ(num_devices(plan_), 3) << "one look was wrong";
  set({});
  for (int i = 0; i < 2; ++i) (void)steps(700);
  EXPECT_EQ(num_devices(plan_), 4) << short_text(plan_);
}

TEST_F(AdaptationControllerTest, ASlowNetworkIsFound) {
  begin({.dp = 8, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 8);
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::link, 3, 8}});
  const double slow = run_->step_seconds();
  const auto wish = steps(60);
  ASSERT_FALSE(controller_->findings().empty());
  ASSERT_TRUE(wish.has_value()) << text(controller_->findings().front());
  EXPECT_EQ(wish->cause, "link");
  EXPECT_LT(run_->step_seconds(), slow) << short_text(plan_);
}

// A ring's time does not say which of its nodes is slow; messages between pairs do.
TEST_F(AdaptationControllerTest, ARingsSlowNodeIsLookedFor) {
  begin({.dp = 4, .microbatch = 1, .batch = 16, .sequence_length = 1024}, 4, {3, 4});
  ASSERT_FALSE(steps(60).has_value());
  EXPECT_EQ(num_probes_, 1) << "what messages take, which rings do not show";
  set({{Cause::link, 2, 8}});
  const double slow = run_->step_seconds();
  const auto wish = steps(60);
  ASSERT_TRUE(wish.has_value());
  EXPECT_EQ(num_probes_, 2);
  EXPECT_NE(wish->why.find("slow network of node 2:"), std::string::npos) << wish->why;
  EXPECT_EQ(num_devices(wish->plan), 3) << short_text(plan_);
  for (const Stage& stage : wish->plan.pipelines.front().stages)
    for (const int device : stage.devices) EXPECT_NE(device, 2);
  EXPECT_LT(run_->step_seconds(), slow);
}

// Messages take longer than before, and steps do not: other plans' steps are not believed to be better for it.
TEST_F(AdaptationControllerTest, WhatMakesNoStepLongerIsNotAnswered) {
  begin({.dp = 4, .microbatch = 1, .batch = 16, .sequence_length = 1024}, 4, {3, 4});
  ASSERT_FALSE(steps(60).has_value());
  seconds_ = run_->step_seconds();
  set({{Cause::link, 2, 8}});
  ASSERT_FALSE(steps(80).has_value());
  EXPECT_FALSE(controller_->findings().empty());
  const std::optional<StayDecision> stay = controller_->take_stay();
  ASSERT_TRUE(stay.has_value());
  EXPECT_EQ(stay->reason, "steps take no longer");
  seconds_.reset();
  EXPECT_TRUE(steps(60).has_value());
}

// Steps of 20 ms: a second has to pass until a slow device is found, which is fifty steps, and by then they are what the plan takes of late.
TEST_F(AdaptationControllerTest, WhatIsFoundLateIsAnswered) {
  least_seconds_ = 0;
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  seconds_ = 0.01;
  ASSERT_FALSE(steps(80).has_value());
  set({{Cause::device, 2, 2}});
  seconds_ = 0.02;
  EXPECT_TRUE(steps(200).has_value());
}

// Where nobody looks, leaving one out at random is no answer, speaking less is.
TEST_F(AdaptationControllerTest, WhereNodesCannotBeToldApartNoneIsLeftOut) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 16, .sequence_length = 1024};
  begin(shape, 4, {4, 4});
  are_probes_answered_ = false;
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::link, 3, 8}});
  const auto wish = steps(60);
  ASSERT_FALSE(controller_->findings().empty());
  EXPECT_EQ(controller_->findings().front().cause, Cause::link);
  EXPECT_EQ(wish ? num_devices(wish->plan) : 4, 4);
}

// What goes straight between cards takes other ways than a look's messages: these would tell of the wrong network.
TEST_F(AdaptationControllerTest, NetworksBetweenCardsAreNotLookedAt) {
  has_host_links_ = false;
  begin({.dp = 4, .microbatch = 1, .batch = 16, .sequence_length = 1024}, 4, {4, 4});
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::link, 3, 8}});
  const auto wish = steps(60);
  ASSERT_FALSE(controller_->findings().empty());
  EXPECT_EQ(controller_->findings().front().cause, Cause::link);
  EXPECT_EQ(num_probes_, 0);
  EXPECT_EQ(wish ? num_devices(wish->plan) : 4, 4);
}

TEST(ProfileOfHosts, EqualNeighboursAreOneGroup) {
  const HardwareProfile one = standard_cluster("cpux5");
  EXPECT_EQ(profile_of(one, {"a", "a", "b", "b", "c"}).groups.size(), 2U);
  EXPECT_EQ(Cluster(profile_of(one, {"a", "a", "b", "b", "c"})).node_of(Device{4}), 2);
  EXPECT_EQ(Cluster(profile_of(one, {"a", "b", "a", "b", "c"})).node_of(Device{4}), 0) << "dealt: one node";
  EXPECT_EQ(profile_of(one, {"a", "a", "a", "a", "a"}).groups.size(), 1U);
}

}  // namespace
}  // namespace optimus
