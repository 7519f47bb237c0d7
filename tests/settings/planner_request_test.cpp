// The planner's request: what it takes from the options, and how it is adapted.
#include "settings/planner_request.h"

#include <gtest/gtest.h>

#include "model/presets.h"
#include "plan/plan.h"

namespace optimus {
namespace {

TrainOptions options_of_request() {
  TrainOptions options;
  options.batch = 16, options.sequence_length = 64, options.precision = "bf16", options.devices = 4;
  options.microbatch = 8, options.recompute = "full", options.save_every = "10m";
  options.layout.tp = Range{2, 2}, options.failures.mtbf = Seconds(1e6), options.history = "here";
  return options;
}

TEST(PlannerRequest, IsBuiltFromOptions) {
  const ModelSpec model = *find_preset("gpt2");
  TrainOptions options = options_of_request();
  PlannerRequest request = planner_request(options, model, {.type = "cpu", .count = 8});
  EXPECT_EQ(&request.model, &model);
  EXPECT_EQ(request.device.count, 8);
  EXPECT_EQ(request.num_devices, 4);
  EXPECT_EQ(request.batch, 16);
  EXPECT_EQ(request.sequence_length, 64);
  EXPECT_EQ(request.precision, Precision::bf16);
  EXPECT_EQ(request.layout, options.layout);
  EXPECT_EQ(request.microbatch, 8);
  EXPECT_FALSE(request.recompute) << "a default is not a constraint";
  EXPECT_EQ(request.failures.mtbf.value, 1e6);
  EXPECT_EQ(request.failures.checkpoint_every.value, 600);
  EXPECT_TRUE(request.prefers_copies);
  EXPECT_EQ(request.history, "here");

  options.is_recompute_explicit = true, options.is_static = true, options.save_every = "100";
  options.devices.reset();
  const PlannerRequest other = planner_request(options, model, {});
  EXPECT_EQ(other.recompute, "full");
  EXPECT_FALSE(other.prefers_copies);
  EXPECT_EQ(other.failures.checkpoint_every.value, Failures{}.checkpoint_every.value) << "steps, not seconds";
  EXPECT_EQ(other.num_devices, 1);
}

TEST(PlannerRequest, IsAdaptedAsACopy) {
  const ModelSpec model = *find_preset("gpt2");
  const PlannerRequest request = planner_request(options_of_request(), model, {});
  EXPECT_EQ(request.for_devices(3).num_devices, 3);
  EXPECT_EQ(request.with_mtbf(kShortMtbf).failures.mtbf.value, kShortMtbf.value);
  const PlannerRequest small = request.for_phase({.begin_step = 0, .batch = 4, .sequence_length = 32});
  EXPECT_EQ(small.batch, 4);
  EXPECT_EQ(small.sequence_length, 32);
  EXPECT_EQ(small.microbatch, 4) << "not more than the batch";
  EXPECT_EQ(request.for_phase({.begin_step = 0, .batch = 32, .sequence_length = 64}).microbatch, 8);
  const Plan plan =
      uniform_plan(model, {.dp = 2, .batch = 6, .sequence_length = 128, .precision = Precision::fp64});
  const PlannerRequest running = request.with_shape_of(plan);
  EXPECT_EQ(running.batch, 6);
  EXPECT_EQ(running.sequence_length, 128);
  EXPECT_EQ(running.precision, Precision::fp64);
  EXPECT_EQ(running.num_devices, 4);
  EXPECT_EQ(request.batch, 16) << "unchanged";
  EXPECT_EQ(request.num_devices, 4) << "unchanged";
}

}  // namespace
}  // namespace optimus
