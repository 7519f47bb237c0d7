// A run's records replayed under other policies: the policies get what was measured and predicted in the run.
#include "report/recorded_trial.h"

#include <gtest/gtest.h>

#include "adapt/finding_text.h"

namespace optimus {
namespace {

// Steps 1 to 400 take 1 s each; from step 101 to 300 a slow device makes dp4 take 2 s. The run switches to
// dp3 (1.25 s) after step 110, and back after step 310.
struct Recorded {
  std::vector<StepMetrics> steps;
  std::vector<Decision> decisions;

  Recorded() {
    for (int s = 1; s <= 400; ++s) {
      const bool is_moved = s > 110 && s <= 310, is_slow = s > 100 && s <= 300;
      steps.push_back({.step = s,
                       .seconds = Seconds(is_moved  ? 1.25
                                          : is_slow ? 2
                                                    : 1),
                       .epoch = s > 310   ? 2
                                : s > 110 ? 1
                                          : 0});
    }
    Decision there{.step = 110, .kind = "switch", .evidence = "slow device 2: 2.00x since step 101"};
    there.from = "dp4", there.to = "dp3", there.epoch = 1, there.cause = "device";
    there.predicted_gain = 0.5, there.measured_gain = 0.6, there.pause = Seconds(0.5);
    there.alternatives = {{"dp4 shared", "share micro-batches", 0.75}};
    Decision back{.step = 310, .kind = "switch", .evidence = "the condition that slowed the run has ended"};
    back.from = "dp3", back.to = "dp4", back.epoch = 2, back.predicted_gain = 0.25, back.pause = Seconds(0.5);
    decisions = {there, back};
  }
  RecordedTrial trial() const {
    return recorded_trial(steps, decisions, [](const std::string& hash) { return hash; });
  }
};

TEST(RecordedTrial, SegmentsHaveMeasuredAndPredictedTimes) {
  const RecordedTrial recorded = Recorded().trial();
  EXPECT_EQ(recorded.plans, (std::vector<std::string>{"dp4", "dp3", "dp4 shared"}));
  EXPECT_EQ(recorded.num_steps, 400);
  EXPECT_EQ(recorded.num_switches, 2);
  EXPECT_DOUBLE_EQ(recorded.seconds, 100 + 10 * 2 + 200 * 1.25 + 90 + 1);
  const std::vector<TrialSegment>& segments = recorded.trial.segments;
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].step_seconds, (std::vector<double>{1, 0, 0})) << "no other plan was known then";
  ASSERT_EQ(segments[1].step_seconds.size(), 3u);
  EXPECT_DOUBLE_EQ(segments[1].begin, 100);
  EXPECT_DOUBLE_EQ(segments[1].step_seconds[0], 2);
  EXPECT_DOUBLE_EQ(segments[1].step_seconds[1], 1.25) << "measured, not 2 / 1.5 as predicted";
  EXPECT_DOUBLE_EQ(segments[1].step_seconds[2], 2 / 1.75);
  ASSERT_EQ(segments[1].conditions.size(), 1u);
  EXPECT_EQ(segments[1].conditions[0].cause, Cause::device);
  EXPECT_DOUBLE_EQ(segments[1].conditions[0].factor, 2);
  EXPECT_TRUE(segments[2].conditions.empty());
  EXPECT_DOUBLE_EQ(segments[2].step_seconds[0], 1);
  EXPECT_DOUBLE_EQ(recorded.trial.detection_steps, 9);
  EXPECT_NEAR(recorded.trial.prediction_error, std::log(1.6 / 1.5), 1e-12);
}

TEST(RecordedTrial, NeverPolicyKeepsFirstPlan) {
  const RecordedTrial recorded = Recorded().trial();
  const std::vector<TrialSegment>& segments = recorded.trial.segments;
  double steps = 0;
  for (const TrialSegment& one : segments) steps += (one.end - one.begin) / one.step_seconds[0];
  const TrialOutcome never = run_trial({.kind = PolicyKind::never}, recorded.trial);
  EXPECT_NEAR(never.useful_steps, steps, 1e-6);
  EXPECT_EQ(never.switches, 0);
  const TrialOutcome best = hindsight(recorded.trial),
                     always = run_trial({.kind = PolicyKind::always_best}, recorded.trial);
  EXPECT_GT(always.useful_steps, never.useful_steps);
  EXPECT_GE(best.useful_steps, always.useful_steps);
}

TEST(RecordedTrial, LossRemovesPlansOfLostRank) {
  Recorded run;
  Decision lost{.step = 350, .kind = "recover", .evidence = "lost rank 3"};
  lost.from = "dp4", lost.to = "dp2", lost.epoch = 3;
  run.decisions.push_back(lost);
  for (StepMetrics& step : run.steps)
    if (step.step > 350) step.epoch = 3;
  const RecordedTrial recorded = run.trial();
  const TrialSegment& last = recorded.trial.segments.back();
  EXPECT_TRUE(last.is_loss);
  for (std::size_t mode = 0; mode < recorded.plans.size(); ++mode)
    EXPECT_EQ(last.step_seconds[mode], recorded.plans[mode] == "dp2" ? 1 : 0)
        << recorded.plans[mode] << ": the remaining workers cannot run it";
}

TEST(RecordedTrial, RunWithoutDecisionsHasOneSegment) {
  Recorded run;
  run.decisions.clear();
  for (StepMetrics& step : run.steps) step.epoch = 0;
  const RecordedTrial recorded = run.trial();
  EXPECT_EQ(recorded.trial.segments.size(), 1u);
  EXPECT_EQ(recorded.plans.size(), 1u);
}

// The text of a finding at more than four locations does not name them all; the record does.
TEST(RecordedTrial, UsesTypedFindings) {
  Recorded run;
  run.decisions[0].evidence = "slow network of node 0 and 5 others: 2.00x since step 101";
  run.decisions[0].findings = {
      {.cause = "link", .locations = {0, 1, 2, 3, 4, 5}, .factor = 2, .begin_step = 101}};
  const RecordedTrial recorded = run.trial();
  ASSERT_EQ(recorded.trial.segments.at(1).conditions.size(), 1u);
  EXPECT_EQ(recorded.trial.segments[1].conditions[0].cause, Cause::link);
  EXPECT_DOUBLE_EQ(recorded.trial.detection_steps, 9);
}

TEST(RecordedTrial, ReadsResponsesOfEarlierVersions) {
  EXPECT_EQ(find_response("cut stages anew"), Response::recut);
  EXPECT_EQ(find_response("back"), Response::resume);
  for (int i = 0; i <= static_cast<int>(Response::resume); ++i)
    EXPECT_EQ(find_response(text(static_cast<Response>(i))), static_cast<Response>(i));
  EXPECT_EQ(find_response("no such response"), std::nullopt);
}

TEST(FindingText, RoundTrips) {
  const std::vector<Finding> all = {
      {.cause = Cause::device, .locations = {5}, .factor = 1.52, .begin_step = 397},
      {.cause = Cause::link, .locations = {0, 1, 3}, .factor = 9.1, .begin_step = 1},
      {.cause = Cause::heavy_stage, .locations = {2}, .factor = 1.2, .begin_step = 12},
      {.cause = Cause::cluster, .locations = {}, .factor = 3, .begin_step = 7}};
  std::string evidence;
  for (const Finding& finding : all) evidence += (evidence.empty() ? "" : ", ") + text(finding);
  const std::vector<RecordedFinding> back = parse_findings(evidence);
  ASSERT_EQ(back.size(), all.size()) << evidence;
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(back[i].cause, word_of(all[i].cause)) << evidence;
    EXPECT_EQ(back[i].locations, all[i].locations) << evidence;
    EXPECT_DOUBLE_EQ(back[i].factor, all[i].factor);
    EXPECT_EQ(back[i].begin_step, all[i].begin_step);
  }
  for (const char* strange :
       {"", "scripted", "asked for", "slow device", "slow device 2: fast", "slow device 2: 2x since when"})
    EXPECT_TRUE(parse_findings(strange).empty()) << strange;
}

}  // namespace
}  // namespace optimus
