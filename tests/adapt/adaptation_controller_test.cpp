// How the controller finds conditions and answers them.
#include "adapt/adaptation_fixture.h"
#include "plan/describe.h"

namespace optimus {
namespace {

// Devices were lost three times in ten minutes, and the plan has no redundant copy of its state. Then a copy
// is worth its cost of 1 %. If no device was lost for a month, it is not; and removing a copy to gain 1 % is
// not worth a switch either.
TEST_F(AdaptationControllerTest, AddsRedundantCopyWhenDevicesAreLost) {
  seeks_better_plan_ = true;
  undone_steps_ = [](const Plan& plan, double) { return plan.copy_distance > 0 ? 0.0 : 2000.0; };
  UniformPlan shape{.dp = 4, .microbatch = 16, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  constexpr double kBegan = 10'000, kMonth = 30 * 86'400;
  const auto copy_distance_after = [&](int copy_distance, int losses, double seconds) {
    calibration_ = Calibration(), membership_ = {.begin_time = kBegan}, now_ = kBegan + seconds;
    for (int i = 0; i < losses; ++i) membership_.losses.add(kBegan + 200 * i);
    begin(shape, 4, {4, 4});
    Plan first = plan_;
    first.copy_distance = copy_distance;
    plan_ = first;
    controller_->plan_adopted(plan_, std::nullopt, step_), simulate();
    for (int i = 0; i < 2; ++i) (void)steps(60);
    return plan_.copy_distance;
  };
  EXPECT_GT(copy_distance_after(0, 3, 600), 0) << short_text(plan_);
  EXPECT_LT(measured_gain_.value_or(1), 0) << "steps are slightly slower, which is no reason to return";
  EXPECT_GT(copy_distance_after(1, 3, 600), 0) << short_text(plan_);
  EXPECT_GT(copy_distance_after(1, 0, kMonth), 0) << short_text(plan_);
  EXPECT_EQ(copy_distance_after(0, 0, kMonth), 0) << short_text(plan_);
}

// A device becomes slow a few steps after a switch. The controller does not wait for the verdict on that
// switch.
TEST_F(AdaptationControllerTest, AnswersConditionThatBeginsAfterASwitchAtOnce) {
  seeks_better_plan_ = true;
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  ASSERT_TRUE(steps(60).has_value());
  least_seconds_ = 0;
  ASSERT_FALSE(steps(5).has_value());
  set({{Cause::device, 2, 3}});
  const std::int64_t begin = step_;
  const auto proposal = steps(60);
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(proposal->cause, "device");
  EXPECT_LE(step_ - begin, 12) << "found within ten";
}

// The new plan seems to gain nothing, because all networks become slow at the same time.
TEST_F(AdaptationControllerTest, DoesNotBlamePlanForLaterConditions) {
  seeks_better_plan_ = true;
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  const Plan first = plan_;
  ASSERT_TRUE(steps(60).has_value());
  ASSERT_FALSE(steps(6).has_value());
  set({{Cause::link, 0, 20}, {Cause::link, 1, 20}, {Cause::link, 2, 20}, {Cause::link, 3, 20}});
  for (int i = 0; i < 60; ++i) {
    if (const auto proposal = steps(1)) {
      EXPECT_NE(proposal->plan, first) << proposal->why;
      break;
    }
    EXPECT_EQ(measured_gain_, std::nullopt) << "the gain cannot be measured";
  }
}

// Scripted conditions are not measured for ten steps first.
TEST_F(AdaptationControllerTest, OracleAnswersScriptedConditionsAtOnce) {
  const Condition slow{Cause::device, 2, 3};
  scripted_ = ScriptedConditions{{1000, {{slow, 100, 200}}}, 0};
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4, {4, 4}, PolicyKind::oracle);
  const auto steps_until = [&](double seconds) {
    std::optional<PlanProposal> proposal;
    while (now_ < seconds && !proposal) {
      conditions_.clear();
      if (now_ >= 100 && now_ < 300) conditions_ = {slow};
      set(conditions_), proposal = steps(1);
    }
    return proposal;
  };
  EXPECT_EQ(steps_until(98), std::nullopt);
  const auto proposal = steps_until(300);
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(proposal->cause, "device");
  EXPECT_LE(now_, 103) << "at once";
  EXPECT_EQ(steps_until(297), std::nullopt);
  ASSERT_TRUE(steps_until(400).has_value()) << "back";
  EXPECT_LE(now_, 304);
}

TEST_F(AdaptationControllerTest, ProposesNothingWithoutConditions) {
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  EXPECT_FALSE(steps(300).has_value());
  EXPECT_TRUE(controller_->findings().empty());
}

TEST_F(AdaptationControllerTest, GivesSlowDeviceLessWorkUntilItRecovers) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  begin(shape, 4, {4, 4});
  ASSERT_FALSE(steps(60).has_value());
  const double healthy = run_->step_seconds();
  set({{Cause::device, 2, 2}});
  const double slow = run_->step_seconds();
  const auto proposal = steps(30);
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(proposal->cause, "device");
  EXPECT_NE(proposal->why.find("slow device 2"), std::string::npos) << proposal->why;
  EXPECT_NEAR(proposal->predicted_gain, slow / run_->step_seconds() - 1, 0.1) << short_text(plan_);
  // Half of one device of four is lost: 8 / 7 of the healthy step time is the optimum.
  EXPECT_LT(run_->step_seconds(), 1.25 * healthy) << short_text(plan_);

  EXPECT_FALSE(steps(40).has_value()) << "the plan stays while the device is slow";
  ASSERT_TRUE(measured_gain_.has_value());
  EXPECT_NEAR(*measured_gain_, proposal->predicted_gain, 0.1);

  set({});
  const auto back = steps(60);
  ASSERT_TRUE(back.has_value()) << "the new plan's ranks are faster than their baseline";
  EXPECT_EQ(back->cause, "");
  EXPECT_LE(run_->step_seconds(), healthy) << "the first plan, or a better one: " << short_text(plan_);
  EXPECT_FALSE(steps(200).has_value()) << short_text(plan_);
}

// The answer is already prepared when the detector has found the slow device.
TEST_F(AdaptationControllerTest, WeighsAnswerToProvisionalFinding) {
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  ASSERT_EQ(steps(40), std::nullopt);
  EXPECT_EQ(num_provisional_, 0);
  set({{Cause::device, 2, 2.5}});
  const std::int64_t begin = step_;
  const auto proposal = steps(20);
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(num_provisional_, 1);
  EXPECT_EQ(num_rejected_, 0);
  EXPECT_EQ(step_ - begin, DetectorOptions{}.strong_window);
  EXPECT_EQ(steps(40), std::nullopt);
  ASSERT_TRUE(measured_gain_.has_value());  // relative to steps under the condition, not to those before it
  EXPECT_NEAR(*measured_gain_, proposal->predicted_gain, 0.2);
}

TEST_F(AdaptationControllerTest, CancelsProvisionalProposalWhenFindingPasses) {
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  ASSERT_EQ(steps(40), std::nullopt);
  for (int i = 0; i < 5; ++i) {  // every 20 seconds
    set({{Cause::device, 2, 2.5}});
    EXPECT_EQ(steps(5), std::nullopt);
    set({});
    EXPECT_EQ(steps(15), std::nullopt);
  }
  EXPECT_EQ(num_provisional_, num_rejected_);
  EXPECT_EQ(num_provisional_, 2);  // the second one waits for 30 seconds, a third one would wait for 60
}

// The best plan for a device with a factor of 4 differs from the one for 1.6.
TEST_F(AdaptationControllerTest, RejectsProvisionalFindingOfAnotherSeverity) {
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  ASSERT_EQ(steps(40), std::nullopt);
  set({{Cause::device, 2, 4}});
  ASSERT_EQ(steps(5), std::nullopt);
  EXPECT_EQ(num_provisional_, 1);
  set({{Cause::device, 2, 1.6}});
  const auto proposal = steps(20);
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(num_rejected_, 1);
  EXPECT_FALSE(proposal->is_provisional);
}

// The reason names the network's certainty, or the guard because of which the rule decides.
TEST_F(AdaptationControllerTest, SupportsLearnedPolicy) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  begin(shape, 4, {4, 4}, PolicyKind::learned);
  EXPECT_FALSE(steps(60).has_value());
  const double healthy = run_->step_seconds();
  set({{Cause::device, 2, 2}});
  const auto proposal = steps(60);
  ASSERT_TRUE(proposal.has_value());
  EXPECT_TRUE(proposal->why.find("learned policy, ") != std::string::npos ||
              proposal->why.find("the rule decides") != std::string::npos)
      << proposal->why;
  EXPECT_LT(run_->step_seconds(), 1.25 * healthy) << short_text(plan_);
}

// The step time of replicas depends on all-reduces between nodes, which no step of a pipeline measures.
TEST_F(AdaptationControllerTest, ProbesChannelsThatStepsDoNotUse) {
  const auto gain_of_replicas = [&](double ring) -> std::optional<double> {
    ring_ = ring, calibration_ = Calibration(), is_any_grid_ = true;
    begin({.pp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
    const auto proposal = steps(100);
    EXPECT_TRUE(proposal.has_value()) << "the last stage is too heavy";
    for (const PlanAlternative& one : proposal ? proposal->alternatives : std::vector<PlanAlternative>())
      if (one.plan.find("dp4") != std::string::npos) return one.predicted_gain;
    return std::nullopt;  // not among the alternatives
  };
  const auto usual = gain_of_replicas(1), slow = gain_of_replicas(30);
  EXPECT_EQ(num_probes_, 2);
  ASSERT_TRUE(usual.has_value()) << "replicas were considered";
  EXPECT_LT(slow.value_or(-1), *usual - 0.1);
}

// The last stage is too heavy from the start, because it has the head in addition to its layers.
TEST_F(AdaptationControllerTest, RecutsHeavyStage) {
  begin({.pp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  const double first = run_->step_seconds();
  const auto proposal = steps(100);
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(proposal->cause, "heavy_stage");
  EXPECT_NEAR(proposal->predicted_gain, first / run_->step_seconds() - 1, 0.02) << short_text(plan_);
  EXPECT_GT(proposal->predicted_gain, 0.02);
}

TEST_F(AdaptationControllerTest, GivesSlowPipelineDeviceFewerLayers) {
  begin({.pp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  for (int i = 0; i < 3; ++i) (void)steps(100);  // the controller may find a better plan first
  const double healthy = run_->step_seconds();
  set({{Cause::device, 1, 1.6}});
  const double slow = run_->step_seconds();
  ASSERT_TRUE(steps(60).has_value());
  EXPECT_LT(run_->step_seconds(), healthy + 0.5 * (slow - healthy)) << short_text(plan_);
}

// With a single layer, the slow device does not slow down the pipeline. Only a probe shows when it has
// recovered.
TEST_F(AdaptationControllerTest, ProbesDeviceThatNewPlanMasks) {
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

// The new plan does not use the device, so steps do not show its speed.
TEST_F(AdaptationControllerTest, TriesUnusedDeviceAgain) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  begin(shape, 4);
  are_probes_answered_ = false;
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::device, 2, 5}});
  // It may get less work first.
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

TEST_F(AdaptationControllerTest, ProbesUnusedDeviceAndReturnsToItWhenItRecovers) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024};
  shape.strategy.zero = 1;
  begin(shape, 4);
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::device, 2, 5}});
  for (int i = 0; i < 3 && num_devices(plan_) != 3; ++i) (void)steps(60);  // it may get less work first
  ASSERT_EQ(num_devices(plan_), 3);
  num_probes_ = 0;
  for (int i = 0; i < 4; ++i) (void)steps(500);
  EXPECT_EQ(num_devices(plan_), 3) << "it is still slow";
  EXPECT_GE(num_probes_, 3);
  // 2,000 s with 20 to 60 s between two probes: sqrt(2 * 0.2 / (0.25 * h)), where h is 0.004 per second in
  // the first minutes and 0.0007 later.
  EXPECT_LE(num_probes_, 80);
  num_wrong_probes_ = 1;
  const int before = num_probes_;
  for (int i = 0; i < 2; ++i) (void)steps(100);
  EXPECT_EQ(num_wrong_probes_, 0);
  EXPECT_GE(num_probes_, before + 2) << "a recovery is confirmed by a second probe";
  EXPECT_EQ(num_devices(plan_), 3) << "one probe was wrong";
  set({});
  for (int i = 0; i < 2; ++i) (void)steps(700);
  EXPECT_EQ(num_devices(plan_), 4) << short_text(plan_);
}

TEST_F(AdaptationControllerTest, AnswersSlowNetwork) {
  begin({.dp = 8, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 8);
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::link, 3, 8}});
  const double slow = run_->step_seconds();
  const auto proposal = steps(60);
  ASSERT_FALSE(controller_->findings().empty());
  ASSERT_TRUE(proposal.has_value()) << text(controller_->findings().front());
  EXPECT_EQ(proposal->cause, "link");
  EXPECT_LT(run_->step_seconds(), slow) << short_text(plan_);
}

// The time of a ring does not show which of its nodes is slow. Messages between pairs do.
TEST_F(AdaptationControllerTest, ProbesForSlowNodeOfRing) {
  begin({.dp = 4, .microbatch = 1, .batch = 16, .sequence_length = 1024}, 4, {3, 4});
  ASSERT_FALSE(steps(60).has_value());
  EXPECT_EQ(num_probes_, 1) << "message times, which rings do not show";
  set({{Cause::link, 2, 8}});
  const double slow = run_->step_seconds();
  const auto proposal = steps(60);
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(num_probes_, 2);
  EXPECT_NE(proposal->why.find("slow network of node 2:"), std::string::npos) << proposal->why;
  EXPECT_EQ(num_devices(proposal->plan), 3) << short_text(plan_);
  for (const Stage& stage : proposal->plan.pipelines.front().stages)
    for (const int device : stage.devices) EXPECT_NE(device, 2);
  EXPECT_LT(run_->step_seconds(), slow);
}

// Messages take longer than before, but steps do not: the finding is no reason for another plan.
TEST_F(AdaptationControllerTest, IgnoresFindingsThatDoNotSlowSteps) {
  begin({.dp = 4, .microbatch = 1, .batch = 16, .sequence_length = 1024}, 4, {3, 4});
  ASSERT_FALSE(steps(60).has_value());
  seconds_ = run_->step_seconds();
  set({{Cause::link, 2, 8}});
  ASSERT_FALSE(steps(80).has_value());
  EXPECT_FALSE(controller_->findings().empty());
  const std::optional<StayDecision> stay = controller_->take_stay();
  ASSERT_TRUE(stay.has_value());
  EXPECT_EQ(stay->reason, "step times have not increased");
  seconds_.reset();
  EXPECT_TRUE(steps(60).has_value());
}

// With steps of 20 ms, a slow device is found after one second, which is fifty steps. By then the recent step
// time is already the slow one.
TEST_F(AdaptationControllerTest, AnswersConditionThatIsFoundLate) {
  least_seconds_ = 0;
  begin({.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024}, 4);
  seconds_ = 0.01;
  ASSERT_FALSE(steps(80).has_value());
  set({{Cause::device, 2, 2}});
  seconds_ = 0.02;
  EXPECT_TRUE(steps(200).has_value());
}

// Without probes, dropping one node at random is no answer. Communicating less is one.
TEST_F(AdaptationControllerTest, DropsNoNodeWhileSlowNodeIsUnknown) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 16, .sequence_length = 1024};
  begin(shape, 4, {4, 4});
  are_probes_answered_ = false;
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::link, 3, 8}});
  const auto proposal = steps(60);
  ASSERT_FALSE(controller_->findings().empty());
  EXPECT_EQ(controller_->findings().front().cause, Cause::link);
  EXPECT_EQ(proposal ? num_devices(proposal->plan) : 4, 4);
}

// GPUs communicate directly, over another network than the messages of a probe.
TEST_F(AdaptationControllerTest, DoesNotProbeGpuNetworks) {
  has_host_links_ = false;
  begin({.dp = 4, .microbatch = 1, .batch = 16, .sequence_length = 1024}, 4, {4, 4});
  ASSERT_FALSE(steps(60).has_value());
  set({{Cause::link, 3, 8}});
  const auto proposal = steps(60);
  ASSERT_FALSE(controller_->findings().empty());
  EXPECT_EQ(controller_->findings().front().cause, Cause::link);
  EXPECT_EQ(num_probes_, 0);
  EXPECT_EQ(proposal ? num_devices(proposal->plan) : 4, 4);
}

TEST(ProfileOfHosts, EqualNeighboursAreOneGroup) {
  const HardwareProfile one = standard_cluster("cpux5");
  EXPECT_EQ(profile_of(one, {"a", "a", "b", "b", "c"}).groups.size(), 2U);
  EXPECT_EQ(Cluster(profile_of(one, {"a", "a", "b", "b", "c"})).node_of(Device{4}), 2);
  EXPECT_EQ(Cluster(profile_of(one, {"a", "b", "a", "b", "c"})).node_of(Device{4}), 0)
      << "interleaved ranks: one node";
  EXPECT_EQ(profile_of(one, {"a", "a", "a", "a", "a"}).groups.size(), 1U);
}

}  // namespace
}  // namespace optimus
