#include "simulate/refit.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "base/error.h"
#include "cluster/standard.h"
#include "cost/constants_json.h"
#include "model/presets.h"

namespace optimus {
namespace {

struct MadeUpRun {
  ModelSpec model;
  Plan plan;
  Cluster cluster;
  DeviceMap map;
  std::optional<StepSimulator> simulator;
};

std::unique_ptr<MadeUpRun> make_run(const std::string& model, const std::string& cluster, UniformPlan shape) {
  ModelSpec spec = *find_preset(model);
  Plan plan = uniform_plan(spec, shape);
  const int devices = num_devices(plan);
  auto run = std::unique_ptr<MadeUpRun>(new MadeUpRun{std::move(spec),
                                                      std::move(plan),
                                                      Cluster(standard_cluster(cluster)),
                                                      DeviceMap::identity(devices),
                                                      {}});
  run->simulator.emplace(Setup{run->plan, run->model, run->cluster, run->map, optimus_software(),
                               format_of(run->plan.precision)});
  return run;
}

// Steps generated with constants other than the fitted ones: the refit predicts them, and unmeasured plans
// better than before.
TEST(Refit, RecoversSyntheticRun) {
  EXPECT_TRUE(rc::check([] {
    Constants truth = fitted_constants();
    const auto factor = [](double most) {
      return std::exp(*rc::gen::inRange(-100, 101) / 100.0 * std::log(most));
    };
    truth.gemm_hopper = std::clamp(truth.gemm_hopper * factor(1.3), 0.6, 1.4);
    truth.bandwidth = std::clamp(truth.bandwidth * factor(1.2), 0.5, 0.95);
    truth.step_seconds *= factor(3), truth.host_residual = factor(1.5), truth.compute_residual = factor(2);
    const auto small = make_run("gpt2", "h200x1", {.microbatch = 4, .batch = 8, .sequence_length = 1024}),
               large =
                   make_run("llama3.2-1b", "h200x1", {.microbatch = 2, .batch = 16, .sequence_length = 2048}),
               unseen =
                   make_run("gpt2-large", "h200x1", {.microbatch = 4, .batch = 32, .sequence_length = 1024});
    std::vector<MeasuredPlan> plans;
    for (const MadeUpRun* run : {small.get(), large.get()})
      plans.push_back({"run", &*run->simulator, run->simulator->seconds(truth), 50, false});
    const Refit found = refit(plans, fitted_constants());
    for (const Refit::Row& row : found.rows)
      RC_ASSERT(std::abs(row.predicted_after / row.measured - 1) < 0.01);
    const double real = unseen->simulator->seconds(truth);
    const double before = std::abs(unseen->simulator->seconds(fitted_constants()) / real - 1),
                 after = std::abs(unseen->simulator->seconds(found.constants) / real - 1);
    RC_ASSERT(after < std::max(0.12, before));
  }));
}

TEST(Refit, KeepsConstantsIfPredictionsAreExact) {
  const auto run = make_run("gpt2", "h200x1", {.microbatch = 4, .batch = 8, .sequence_length = 1024});
  const MeasuredPlan plan{"run", &*run->simulator, run->simulator->seconds(fitted_constants()), 50, false};
  const Refit found = refit(std::span(&plan, 1), fitted_constants());
  EXPECT_NEAR(found.constants.compute_residual, 1, 1e-9);
  EXPECT_EQ(found.constant_names,
            (std::vector<std::string>{"residual.compute", "residual.memory", "residual.host"}));
}

TEST(Refit, ReadsMetrics) {
  const std::string lines =
      "{\"step\": 1, \"seconds\": 9.0, \"epoch\": 0}\n{\"step\": 2, \"seconds\": 2.0, \"epoch\": 1}\n"
      "{\"step\": 3, \"seconds\": 3.0, \"epoch\": 1}\n{\"step\": 4, \"seco";
  EXPECT_EQ(step_seconds_of(lines, "m"),
            (std::vector<double>{2, 3}));  // of the last plan; the incomplete line is skipped
  EXPECT_EQ(typical_seconds({100, 50, 20, 1, 2, 3, 2, 90}), 2);
  EXPECT_EQ(typical_seconds({5}), 5);
  EXPECT_THROW(step_seconds_of("", "m"), UserError);
  EXPECT_THROW(step_seconds_of("{\"step\": 1}\n", "m"), UserError);
  EXPECT_THROW(step_seconds_of("{\"seconds\": -1}\n", "m"), UserError);
  EXPECT_THROW(step_seconds_of("{\"seconds\": \"x\"}\n", "m"), UserError);
}

TEST(ConstantsFile, RoundTrips) {
  NamedConstants named = builtin_constants();
  named.constants.compute_residual = 0.93, named.constants.bandwidth = 0.7, named.origin = "a test";
  const OrderedJson json = to_json(named);
  EXPECT_EQ(json["constants"].size(), 2u);
  const NamedConstants again = parse_constants(json.dump(), "c.json");
  EXPECT_EQ(again.origin, "c.json (a test)");
  for (const ConstantRow& row : constant_rows())
    EXPECT_EQ(again.constants.*row.member, named.constants.*row.member) << row.name;
}

TEST(ConstantsFile, RefusesInvalidInput) {
  const auto refusal = [](const std::string& constants) -> std::string {
    try {
      parse_constants("{\"format\": \"optimus-constants\", \"version\": 1, \"constants\": " + constants + "}",
                      "c");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("{}"), "");
  EXPECT_NE(refusal("{\"residual.computer\": 1}").find("residual.compute"), std::string::npos);
  EXPECT_NE(refusal("{\"bandwidth\": 7}").find("bandwidth: expected 0.5 to 0.95, got 7"), std::string::npos);
  EXPECT_NE(refusal("{\"bandwidth\": \"x\"}"), "");
  EXPECT_NE(refusal("[]"), "");
  EXPECT_THROW(parse_constants("{\"format\": \"x\"}", "c"), UserError);
  EXPECT_THROW(parse_constants("", "c"), UserError);
}

}  // namespace
}  // namespace optimus
