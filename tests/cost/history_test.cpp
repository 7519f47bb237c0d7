// Residuals learned from simulated histories.
#include "cost/history.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "cluster/open.h"
#include "cost/correction.h"
#include "cost/history_json.h"

namespace optimus {
namespace {

constexpr std::int64_t kDay = 86400;

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : key_(seed) {}
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - random_uniform(key_, offset_)));
    const double angle = 2 * std::numbers::pi * random_uniform(key_, offset_ + 1);
    offset_ += 2;
    return radius * std::cos(angle);
  }

 private:
  RandomKey key_;
  std::uint64_t offset_ = 0;
};

PastRun run_with(double log_factor, int steps = 50, std::int64_t when = 0, double uncertainty = 0) {
  PastRun run;
  run.end_time = when, run.device = "h100", run.step_seconds = 1;
  run.parameters = run.layers = run.batch = run.sequence_length = 1;
  run.evidence = {{ResidualKind::layers, "h100", log_factor, uncertainty, steps}};
  return run;
}

Residual only_residual(const History& history) {
  const std::vector<Residual> found = residuals(history);
  EXPECT_EQ(found.size(), 1u);
  return found.front();
}

// Runs around a true factor, distributed according to the model's assumptions.
History simulated_history(Draws& draws, double truth, double run_spread, int num_runs, int steps) {
  History history;
  for (int i = 0; i < num_runs; ++i)
    add_run(history,
            run_with(truth + run_spread * draws.normal() + kStepSpread / std::sqrt(steps) * draws.normal(),
                     steps));
  return history;
}

TEST(History, IntervalsHaveStatedCoverage) {
  Draws draws(1);
  constexpr int kDraws = 400;
  for (const double run_spread : {0.02, 0.15, 0.3})
    for (const int num_runs : {1, 3, 10}) {
      int held = 0;
      for (int i = 0; i < kDraws; ++i) {
        const double truth = kPriorSpread * draws.normal();
        const Residual found = only_residual(simulated_history(draws, truth, run_spread, num_runs, 50));
        held += std::log(found.low) <= truth && truth <= std::log(found.high);
      }
      // 95 % of 400 are 380, with a standard deviation of 4.4; the bound is three standard deviations lower.
      // If runs vary twice as much as the prior assumes, three runs are too few to show it; 90 % is expected
      // in that case.
      EXPECT_GE(held, run_spread > kRunSpread ? 342 : 367) << run_spread << " " << num_runs;
    }
}

TEST(History, ConsistentRunsNarrowInterval) {
  Draws draws(2);
  const double truth = std::log(1.5);
  double before = 1e300;
  for (const int num_runs : {1, 2, 4, 8, 16, 32}) {
    History history;
    for (int i = 0; i < num_runs; ++i) add_run(history, run_with(truth));
    const Residual found = only_residual(history);
    const double width = std::log(found.high / found.low), miss = std::abs(std::log(found.factor) - truth);
    EXPECT_LT(width, before);
    EXPECT_LE(miss, 0.3 * truth / num_runs);  // the prior weighs at most as much as 0.3 runs
    before = width;
  }
  EXPECT_LT(before, 0.1);
}

// Factors are noise around 1. The estimate lies between 0 and the runs' mean, so its error is at most that of
// the mean. If runs are inconsistent, the prior of spread t = 0.25 reduces the error further: with n runs of
// known spread s it is s sqrt(n) / (s^2 / t^2 + n), at most t / 2 = 0.125 for any s and n. Here the spread is
// estimated from 16 runs with an accuracy of a fifth (1 / sqrt(2 x 15) = 0.18), which is added to the
// tolerance.
TEST(History, NoiseHardlyWorsensPredictions) {
  Draws draws(3);
  constexpr int kDraws = 200;
  for (const double spread : {0.05, 0.2, 0.5, 1.0})
    for (const int num_runs : {1, 4, 16, 64}) {
      double squares = 0;
      for (int i = 0; i < kDraws; ++i) {
        const History history = simulated_history(draws, 0, spread, num_runs, 1'000'000);
        double mean = 0;
        for (const PastRun& run : history.runs) mean += run.evidence.front().log_factor / num_runs;
        const double error = std::log(only_residual(history).factor);
        EXPECT_LE(std::abs(error), std::abs(mean) * (1 + 1e-9));
        squares += error * error;
      }
      if (num_runs < 16) continue;
      EXPECT_LE(std::sqrt(squares / kDraws), 1.2 * kPriorSpread / 2) << spread << " " << num_runs;
    }
}

RC_GTEST_PROP(History, OrderOfRunsDoesNotMatter, ()) {
  Draws draws(static_cast<std::uint64_t>(*rc::gen::inRange(0, 1'000'000)));
  History history;
  const int count = *rc::gen::inRange(1, 20);
  for (int i = 0; i < count; ++i)
    history.runs.push_back(
        run_with(draws.normal(), *rc::gen::inRange(1, 100), *rc::gen::inRange(0, 5) * kDay));
  const Residual before = only_residual(history);
  std::vector<std::size_t> order(history.runs.size());
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[*rc::gen::inRange<std::size_t>(0, i)]);
  History shuffled;
  for (const std::size_t i : order) shuffled.runs.push_back(history.runs[i]);
  const Residual after = only_residual(shuffled);
  RC_ASSERT(before.factor == after.factor && before.low == after.low && before.high == after.high);
}

// Never beyond the observation of some run, and always between that and 1.
RC_GTEST_PROP(History, FactorIsBetweenOneAndObservations, ()) {
  Draws draws(static_cast<std::uint64_t>(*rc::gen::inRange(0, 1'000'000)));
  History history;
  double low = 0, high = 0;
  const int count = *rc::gen::inRange(1, 20);
  for (int i = 0; i < count; ++i) {
    const double log = draws.normal();
    low = std::min(low, log), high = std::max(high, log);
    add_run(history, run_with(log, *rc::gen::inRange(1, 100), *rc::gen::inRange(0, 100) * kDay, 0.1));
  }
  const Residual found = only_residual(history);
  RC_ASSERT(std::log(found.factor) >= low - 1e-12 && std::log(found.factor) <= high + 1e-12);
  RC_ASSERT(found.low <= found.factor && found.factor <= found.high);
}

TEST(History, NewerAndLongerRunsWeighMore) {
  History by_age, by_steps, by_doubt;
  add_run(by_age, run_with(0.4, 50, 0)), add_run(by_age, run_with(0.0, 50, 90 * kDay));
  add_run(by_steps, run_with(0.4, 1)), add_run(by_steps, run_with(0.0, 1000));
  add_run(by_doubt, run_with(0.4, 50, 0, 0.5)), add_run(by_doubt, run_with(0.0, 50, 0, 0));
  for (const History& history : {by_age, by_steps, by_doubt}) {
    const double log = std::log(only_residual(history).factor);
    EXPECT_GT(log, 0);
    EXPECT_LT(log, 0.15);  // an unweighted mean would be 0.2, minus the influence of the prior
  }
}

TEST(History, DropsOldestRunAboveLimit) {
  History history;
  for (int i = 0; i < 300; ++i) add_run(history, run_with(0, 1, i));
  EXPECT_EQ(history.runs.size(), kMaxPastRuns);
  EXPECT_EQ(history.runs.front().end_time, 300 - static_cast<std::int64_t>(kMaxPastRuns));
}

History sample_history() {
  History history;
  for (int i = 0; i < 3; ++i) {
    PastRun run = run_with(0.25 + 0.01 * i, 40, i * kDay, 0.02);
    run.evidence.push_back({ResidualKind::large_messages, "h100/domain", -0.1, 0.01, 40});
    run.evidence.push_back({ResidualKind::optimizer, "h100", 0.1, 0.01, 40});
    run.evidence.push_back({ResidualKind::host, "h100", 0.5, 0.01, 40});
    run.strategy.tp = 2, run.strategy.dp = 4, run.devices = 8;
    add_run(history, run);
  }
  return history;
}

TEST(HistoryFile, RoundTrips) {
  const History history = sample_history();
  EXPECT_EQ(parse_history(to_json(history).dump(), "x"), history);
}

// Every truncation, and every byte replaced by others: the file is read completely or refused with one line.
TEST(HistoryFile, ReportsBrokenFilesInOneLine) {
  History history = sample_history();
  history.runs.resize(1);
  const std::string whole = to_json(history).dump();
  int num_refused = 0;
  const auto try_one = [&](const std::string& broken) {
    try {
      (void)parse_history(broken, "history.json");
    } catch (const UserError& error) {
      ++num_refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("history.json"), 0u) << error.what();
    }
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    try_one(whole.substr(0, i));
    for (const char other : {'0', '-', '"', '}', '\xff', '9'}) {
      std::string broken = whole;
      broken[i] = other;
      try_one(broken);
    }
  }
  EXPECT_GT(num_refused, static_cast<int>(whole.size()));  // every truncation, and most replacements
}

TEST(HistoryFile, RefusesOtherFormats) {
  const auto refusal = [](const std::string& text) {
    try {
      (void)parse_history(text, "h");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("read");
  };
  EXPECT_NE(refusal("{\"format\": \"optimus-constants\"}").find("optimus-history"), std::string::npos);
  EXPECT_NE(refusal("{\"format\": \"optimus-history\", \"version\": 9, \"runs\": []}").find("version 9"),
            std::string::npos);
  OrderedJson many = to_json(sample_history());
  for (std::size_t i = 0; i < kMaxPastRuns; ++i) many["runs"].push_back(many["runs"][0]);
  EXPECT_NE(refusal(many.dump()).find("256"), std::string::npos);
  for (const char* number : {"-1", "1e300", "null", "\"x\""}) {
    std::string text = to_json(sample_history()).dump();
    const std::string key = "\"step_seconds\":1.0";
    ASSERT_NE(text.find(key), std::string::npos);
    text.replace(text.find(key), key.size(), std::string("\"step_seconds\":") + number);
    EXPECT_NE(refusal(text).find("step_seconds"), std::string::npos) << number;
  }
}

TEST(Correction, SlowsDevicesThatRunsFoundSlower) {
  const std::vector<Residual> found = residuals(sample_history());
  const HardwareProfile before = open_cluster("h100x8").profile();
  const CorrectedInputs after = correct_inputs(before, fitted_constants(), found);
  const double layers = factor_of(found, ResidualKind::layers, "h100");
  EXPECT_GT(layers, 1.15);
  EXPECT_LT(layers, std::exp(0.27));
  EXPECT_EQ(after.profile.types, before.types);  // peak rates stay those of the data sheet
  EXPECT_DOUBLE_EQ(after.constants.compute_residual, layers);
  EXPECT_DOUBLE_EQ(after.constants.memory_residual, layers);
  const double large = factor_of(found, ResidualKind::large_messages, "h100/domain");
  EXPECT_LT(large, 1);
  EXPECT_DOUBLE_EQ(after.profile.groups[0].domain_link.bytes_per_second,
                   before.groups[0].domain_link.bytes_per_second / large);
  EXPECT_EQ(after.profile.groups[0].network, before.groups[0].network);
  EXPECT_DOUBLE_EQ(after.constants.host_residual, factor_of(found, ResidualKind::host, "h100"));
  EXPECT_DOUBLE_EQ(after.constants.optimizer_traffic * layers,
                   fitted_constants().optimizer_traffic * factor_of(found, ResidualKind::optimizer, "h100"));
  EXPECT_EQ(after.applied_residuals.size(), 4u);
  EXPECT_NE(text(after).find("layers on h100 x 1."), std::string::npos) << text(after);
}

TEST(Correction, CorrectsEachTypeOfMixedCluster) {
  const std::vector<Residual> found = residuals(sample_history());
  const HardwareProfile before = open_cluster("h100x8+a100x8").profile();
  const CorrectedInputs after = correct_inputs(before, fitted_constants(), found);
  const double layers = factor_of(found, ResidualKind::layers, "h100");
  EXPECT_DOUBLE_EQ(after.constants.compute_residual, 1);
  ASSERT_EQ(before.types.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_DOUBLE_EQ(after.profile.types[i].peak.bf16,
                     before.types[i].peak.bf16 / (before.types[i].name == "h100" ? layers : 1));
}

TEST(Correction, LeavesOtherDevicesUnchanged) {
  const std::vector<Residual> found = residuals(sample_history());
  const HardwareProfile other = open_cluster("a100x8").profile();
  EXPECT_EQ(correct_inputs(other, fitted_constants(), found).profile, other);
  EXPECT_NE(text(correct_inputs(other, fitted_constants(), found)).find("no runs"), std::string::npos);
  // Measured devices: runs were compared with the built-in rates, which differ.
  HardwareProfile measured = open_cluster("h100x8").profile();
  measured.types[0].peak.bf16 *= 0.7, measured.groups[0].domain_link.bytes_per_second *= 0.5;
  const CorrectedInputs after = correct_inputs(measured, fitted_constants(), found);
  EXPECT_EQ(after.profile, measured);
  EXPECT_EQ(after.constants.compute_residual, 1);
  EXPECT_EQ(after.constants.host_residual, 1);
}

}  // namespace
}  // namespace optimus
