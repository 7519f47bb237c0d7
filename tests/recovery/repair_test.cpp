#include "recovery/repair.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "trials/shared_traces.h"

namespace optimus {
namespace {

std::vector<Outage> ended_after(std::vector<double> lengths) {
  std::vector<Outage> history;
  double now = 0;
  for (const double length : lengths) history.push_back({now, now + length}), now += length + 100;
  return history;
}

TEST(Repair, LearnsOutageKindsFromHistory) {
  const RepairForecast before({}, 0);
  const RepairForecast processes(ended_after({2, 4, 3, 2, 5, 3, 4, 2}), 10'000);
  const RepairForecast spot_machines(ended_after({600, 900, 1500, 300, 2000, 700}), 1e6);
  EXPECT_GT(processes.shares()[0], 0.7);
  EXPECT_GT(spot_machines.shares()[1], 0.6);
  EXPECT_LT(processes.survival_probability(0, 60), before.survival_probability(0, 60));
  EXPECT_LT(spot_machines.survival_probability(0, 86400), before.survival_probability(0, 86400));
  // An ongoing outage shifts the forecast to long outages too.
  const RepairForecast open({{0, -1}}, 86400 * 3);
  EXPECT_GT(open.shares()[2], before.shares()[2]);
}

TEST(Repair, RemainingTimeGrowsWithElapsedTime) {
  const RepairForecast forecast({}, 0);
  double rest = 0;
  for (const double elapsed : {0.0, 60.0, 3600.0, 86400.0, 86400.0 * 20}) {
    const double next = forecast.expected_remaining_seconds(elapsed);
    EXPECT_GT(next, rest);
    rest = next;
    EXPECT_GE(forecast.survival_probability(elapsed, 10), forecast.survival_probability(elapsed, 20));
    EXPECT_LE(forecast.survival_probability(elapsed, 10), 1);
    EXPECT_GE(forecast.survival_probability(elapsed, 1e12), 0);
  }
}

// The expected remaining length is the integral of the survival probability.
TEST(Repair, MeanIsIntegralOfSurvivalFunction) {
  const RepairForecast forecast(ended_after({2, 3, 600}), 1e5);
  for (const double elapsed : {0.0, 100.0, 5000.0}) {
    double sum = 0;
    const double factor = 1.001;
    for (double at = 1e-3; at < 1e11; at *= factor)
      sum += forecast.survival_probability(elapsed, at * std::sqrt(factor)) * at * (factor - 1);
    EXPECT_NEAR(sum / forecast.expected_remaining_seconds(elapsed), 1, 0.01) << elapsed;
    EXPECT_NEAR(forecast.expected_excess_seconds(elapsed, 0), forecast.expected_remaining_seconds(elapsed),
                1e-9);
  }
}

TEST(Repair, WaitsForProcessesButNotForRepairs) {
  const RepairForecast processes(ended_after({2, 4, 3, 2, 5, 3, 4, 2, 3, 3, 2, 4}), 10'000);
  // Replanning costs 20 s and readmission 20 s: waiting for a process of a few seconds pays, but not
  // indefinitely.
  const WaitCosts expensive{
      .speed_without = 0.8, .replan_seconds = 20, .readmit_seconds = 20, .resume_seconds = 1};
  const WaitChoice waits = wait_or_replan(processes, 0, expensive);
  EXPECT_GT(waits.wait_seconds, 2);
  EXPECT_LT(waits.wait_seconds, 600);
  EXPECT_LT(waits.expected_loss, waits.loss_without_wait);
  // After an absence of hours, waiting does not pay.
  EXPECT_EQ(wait_or_replan(processes, 3600 * 10, expensive).wait_seconds, 0);
  // If replanning costs almost nothing, waiting never pays.
  const WaitCosts inexpensive{.speed_without = 0.85, .replan_seconds = 0.1, .readmit_seconds = 0.1};
  EXPECT_EQ(wait_or_replan(RepairForecast({}, 0), 0, inexpensive).wait_seconds, 0);
  // If training cannot continue without the node, waiting has no additional cost.
  const WaitChoice none = wait_or_replan(RepairForecast({}, 0), 0, {.speed_without = 0, .replan_seconds = 5});
  EXPECT_LE(none.expected_loss, none.loss_without_wait);
}

TEST(Repair, FailureRateFollowsObservations) {
  FailureRate rate;
  const double before = rate.per_node_second();
  rate.add_node_time(8, 3600), rate.add_failures(240);
  EXPECT_NEAR(rate.per_node_second() * 8 * 15, 0.45, 0.05);  // prior of ten node-hours, eight observed
  EXPECT_GT(rate.per_node_second(), before);
  rate.add_node_time(8, 36000), rate.add_failures(2400);
  EXPECT_NEAR(rate.per_node_second() * 8 * 15, 1, 0.12);
}

TEST(Repair, ReadsOutagesFromTraces) {
  const AvailabilityTrace trace = parse_trace(
      "0,add,a\n0,add,b\n10000,remove,a\n20000,remove,b\n30000,add,b\n50000,add,a\n60000,remove,a\n", "t");
  EXPECT_EQ(outage_durations(trace, Matching::by_name), (std::vector<double>{10, 40}));
  EXPECT_EQ(outage_durations(trace, Matching::by_count), (std::vector<double>{20, 30}));
  const LogNormal fit = fit_log_normal({std::exp(1.0), std::exp(3.0)});
  EXPECT_NEAR(fit.median, std::exp(2.0), 1e-9);
  EXPECT_NEAR(fit.spread, 1, 1e-9);
}

// The prior is fitted to these traces, which are not part of the repository.
TEST(Repair, PriorIsFittedToPublishedTraces) {
  const Path spot = shared_traces() / "bamboo" / "p3-trace.csv",
             faults = shared_traces() / "infinitehbd" / "fault_trace.json";
  if (std::error_code error; !std::filesystem::exists(spot, error) || !std::filesystem::exists(faults, error))
    GTEST_SKIP() << shared_traces() << " does not exist: the fit of the prior is not checked";
  const LogNormal returns = fit_log_normal(outage_durations(read_trace(spot), Matching::by_count));
  EXPECT_NEAR(returns.median, outage_kinds()[1].median_seconds, 0.01 * returns.median);
  EXPECT_NEAR(returns.spread, outage_kinds()[1].spread, 0.01);
  std::vector<double> repairs = outage_durations(read_trace(faults), Matching::by_name);
  std::erase_if(repairs, [](double length) { return length < 60; });
  const LogNormal outages = fit_log_normal(repairs);
  EXPECT_NEAR(outages.median, outage_kinds()[2].median_seconds, 0.01 * outages.median);
  EXPECT_NEAR(outages.spread, outage_kinds()[2].spread, 0.01);
}

}  // namespace
}  // namespace optimus
