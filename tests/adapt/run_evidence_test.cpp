// Evidence from simulated runs on machines that are slower than predicted.
#include "adapt/run_evidence.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cluster/standard.h"
#include "model/presets.h"
#include "simulate/simulate.h"
#include "trials/simulated_run.h"

namespace optimus {
namespace {

class RunEvidence : public testing::Test {
 protected:
  RunEvidence() {
    UniformPlan shape{.pp = 2, .dp = 2, .microbatch = 1, .batch = 16, .sequence_length = 1024};
    shape.strategy.tp = 2;
    plan_ = uniform_plan(model_, shape);
  }

  // A run on machines whose devices all take `slower` times as long.
  RunMeasurements measured(double slower, int steps = 40) {
    SimulatedRun run(plan_, model_, cluster_.profile(), Noise{}, 7);
    std::vector<Condition> conditions;
    for (int i = 0; i < 8; ++i) conditions.push_back({Cause::device, i, slower});
    run.set(conditions);
    RunMeasurements result{plan_, model_, cluster_, "h100", {}, {}};
    for (int i = 0; i < steps; ++i) result.observations.push_back(run.next());
    result.step_seconds.assign(static_cast<std::size_t>(steps), 2 * kMinRunSeconds / steps);
    return result;
  }

  static const Evidence* find(const std::vector<Evidence>& all, ResidualKind kind,
                              const std::string& location) {
    for (const Evidence& one : all)
      if (one.kind == kind && one.device_type == location) return &one;
    return nullptr;
  }

  const ModelSpec model_ = *find_preset("gpt3-1.3b");
  const Cluster cluster_{standard_cluster("h100x8")};
  Plan plan_;
};

TEST_F(RunEvidence, DistinguishesKindsOfWork) {
  const std::vector<Evidence> evidence = evidence_of(measured(1.3));
  // Tolerance: ranks differ by 1 %, steps by 3 %, of which the median over 40 steps of 8 ranks leaves less
  // than 1 %, and 1 % is common to all.
  const double tolerance = 0.03;
  for (const ResidualKind kind : {ResidualKind::embedding, ResidualKind::layers, ResidualKind::head}) {
    const Evidence* one = find(evidence, kind, "h100");
    ASSERT_NE(one, nullptr) << text(kind);
    EXPECT_NEAR(one->log_factor, std::log(1.3), tolerance) << text(kind);
    EXPECT_EQ(one->steps, 40);
  }
  const Evidence* links = find(evidence, ResidualKind::large_messages, "h100/domain");
  ASSERT_NE(links, nullptr);
  // Simulated links use the predicted time of another message size than the program's largest one, so only
  // the magnitude is checked.
  EXPECT_LT(std::abs(links->log_factor), std::log(2));
  EXPECT_NE(find(evidence, ResidualKind::optimizer, "h100"), nullptr);
  EXPECT_EQ(find(evidence, ResidualKind::large_messages, "h100/network"), nullptr);
}

TEST_F(RunEvidence, UsesStepTimesWithoutTimedInstructions) {
  RunMeasurements timed = measured(1.3);
  timed.observations.clear();
  const double predicted = StepSimulator({plan_, model_, cluster_, DeviceMap::identity(8), optimus_software(),
                                          format_of(plan_.precision)})
                               .seconds(fitted_constants());
  const int steps = static_cast<int>(kMinRunSeconds / predicted) + kMinSteps;
  timed.step_seconds.assign(static_cast<std::size_t>(steps), 1.3 * predicted);
  const std::vector<Evidence> evidence = evidence_of(timed);
  ASSERT_EQ(evidence.size(), 1u);
  EXPECT_EQ(evidence.front().kind, ResidualKind::layers);
  EXPECT_NEAR(evidence.front().log_factor, std::log(1.3), 1e-9);
  EXPECT_GT(evidence.front().uncertainty, 0.05);
}

TEST_F(RunEvidence, IgnoresShortRuns) {
  RunMeasurements brief = measured(1.3);
  brief.step_seconds.assign(40, 0.1);
  EXPECT_TRUE(evidence_of(brief).empty());
  brief.step_seconds.assign(5, 100);
  EXPECT_TRUE(evidence_of(brief).empty());
}

TEST_F(RunEvidence, RecordsStrategyOfLayers) {
  const PastStrategy past = strategy_of(plan_);
  EXPECT_EQ(past, (PastStrategy{.pp = 2, .tp = 2, .dp = 2}));
}

}  // namespace
}  // namespace optimus
