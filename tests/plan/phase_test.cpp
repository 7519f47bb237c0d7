// Phases of a training: the steps at which batch and length grow, and the validity of plans for another
// batch.
#include "plan/phase.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "base/options.h"
#include "model/presets.h"
#include "plan/validate.h"

namespace optimus {
namespace {

TEST(Phases, DoublesInEqualIntervals) {
  EXPECT_EQ(phases_of("8:3000", 64, "", 1024),
            (std::vector<Phase>{{0, 8, 1024}, {1000, 16, 1024}, {2000, 32, 1024}, {3000, 64, 1024}}));
  EXPECT_EQ(phases_of("", 64, "", 1024), (std::vector<Phase>{{0, 64, 1024}}));
  EXPECT_EQ(phases_of("3:10", 5, "", 16), (std::vector<Phase>{{0, 3, 16}, {10, 5, 16}}))
      << "ends with the full batch";
  EXPECT_EQ(phases_of("8:20", 16, "256:20", 1024),
            (std::vector<Phase>{{0, 8, 256}, {10, 8, 512}, {20, 16, 1024}}));
}

TEST(Phases, FollowsListedSteps) {
  EXPECT_EQ(phases_of("8,24@700,64@900", 64, "", 16),
            (std::vector<Phase>{{0, 8, 16}, {700, 24, 16}, {900, 64, 16}}));
}

// Phases that follow the noise get their first steps one after the other. A phase has at least 20 steps and
// starts 4 steps after the decision.
TEST(Phases, FollowsGradientNoise) {
  EXPECT_TRUE(is_noise_ramp("8:noise"));
  EXPECT_FALSE(is_noise_ramp("8:3000") || is_noise_ramp("") || is_noise_ramp("8,16@noise"));
  const std::vector<Phase> phases = phases_of("8:noise", 40, "", 16);
  EXPECT_EQ(phases,
            (std::vector<Phase>{
                {0, 8, 16}, {kUndecidedStep, 16, 16}, {kUndecidedStep, 32, 16}, {kUndecidedStep, 40, 16}}));
  EXPECT_EQ(next_phase_start(phases, {}, 19, 100.0), std::nullopt) << "too early";
  EXPECT_EQ(next_phase_start(phases, {}, 20, std::nullopt), std::nullopt);
  EXPECT_EQ(next_phase_start(phases, {}, 20, 15.9), std::nullopt);
  EXPECT_EQ(next_phase_start(phases, {}, 20, 16.0), 24);
  EXPECT_EQ(next_phase_start(phases, {24}, 43, 100.0), std::nullopt) << "the phase has just begun";
  EXPECT_EQ(next_phase_start(phases, {24}, 44, 100.0), 48);
  EXPECT_EQ(next_phase_start(phases, {24, 48, 72}, 500, 100.0), std::nullopt) << "the last phase has started";
  EXPECT_EQ(phase_at(with_decided_starts(phases, {24}), 23).batch, 8);
  EXPECT_EQ(phase_at(with_decided_starts(phases, {24}), 24).batch, 16);
  EXPECT_EQ(phase_at(with_decided_starts(phases, {24}), 1'000'000).batch, 16);
}

TEST(Phases, FindsPhaseOfStep) {
  const std::vector<Phase> phases = phases_of("8:3000", 64, "", 1024);
  EXPECT_EQ(phase_at(phases, 0).batch, 8);
  EXPECT_EQ(phase_at(phases, 999).batch, 8);
  EXPECT_EQ(phase_at(phases, 1000).batch, 16) << "the step after step 1000";
  EXPECT_EQ(phase_at(phases, 1'000'000).batch, 64);
}

TEST(Phases, RefusesInvalidRamps) {
  for (const char* words :
       {"8", "8:", ":3", "8:3:4", "8:x", "-8:30", "8:0", "0:8", "8:noisy", "noise", "8,", ",", "8,16",
        "8,16@", "8@3,16@4", "8,16@x,64@9", "8,16@0,64@9", "8,64@3@4", "99999999999999999999:3"})
    EXPECT_THROW((void)phases_of(words, 64, "", 1024), UsageError) << words;
  EXPECT_THROW((void)phases_of("64:30", 64, "", 1024), UsageError) << "does not grow";
  EXPECT_THROW((void)phases_of("1:5", 64, "", 1024), UsageError) << "six changes in five steps";
  EXPECT_NO_THROW((void)phases_of("1:6", 64, "", 1024));
  EXPECT_THROW((void)phases_of("8,16@9,16@12,64@20", 64, "", 1024), UsageError);
  EXPECT_THROW((void)phases_of("8,32@9", 64, "", 1024), UsageError) << "does not end with 64";
  EXPECT_THROW((void)phases_of("", 64, "8:noise", 1024), UsageError) << "noise does not determine lengths";
  EXPECT_THROW((void)phases_of("", 64, "8,1024@9", 1024), UsageError);
  EXPECT_THROW((void)phases_of("8:noise", 64, "8:9", 1024), UsageError);
  EXPECT_EQ(text(Phase{0, 8, 256}, Phase{9, 16, 512}), "batch 8 → 16, sequences of 256 → 512 tokens");
}

// Any grid, and any batch with at least one sequence per pipeline.
TEST(Phases, PlanForAnotherBatchIsValid) {
  const ModelSpec model = *find_preset("gpt2");
  rc::check([&] {
    UniformPlan shape{
        .pp = *rc::gen::inRange(1, 5), .dp = *rc::gen::inRange(1, 5), .microbatch = *rc::gen::inRange(1, 4)};
    shape.batch = *rc::gen::inRange(8, 200), shape.sequence_length = 128;
    if (shape.pp > 1 && *rc::gen::arbitrary<bool>()) shape.chunks = 2, shape.schedule = Schedule::interleaved;
    const Plan plan = uniform_plan(model, shape);
    RC_PRE(!find_problem(plan, model));
    const std::int64_t batch = *rc::gen::inRange<std::int64_t>(shape.dp * shape.pp * 2, 400);
    const Plan other = with_batch(plan, batch, 256);
    const auto problem = find_problem(other, model);
    RC_ASSERT(!problem);
    RC_ASSERT(other.batch == batch && other.sequence_length == 256);
    RC_ASSERT(num_devices(other) == num_devices(plan));
    const std::vector<int>& sizes = other.pipelines[0].microbatches;
    RC_ASSERT(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == batch);
  });
}

TEST(Phases, PipelinesKeepTheirShares) {
  const ModelSpec model = *find_preset("gpt2");
  Plan plan = uniform_plan(model, {.dp = 2, .microbatch = 4, .batch = 8, .sequence_length = 128});
  Pipeline slow = plan.pipelines[0], quick = slow;
  slow.stages[0].devices = {1}, slow.microbatches = {2};
  quick.stages[0].devices = {0}, quick.microbatches = {6};
  plan.pipelines = {slow, quick};
  ASSERT_EQ(find_problem(plan, model), std::nullopt);
  const Plan other = with_batch(plan, 32, 128);
  EXPECT_EQ(find_problem(other, model), std::nullopt);
  const auto sequences = [&](std::size_t p) {
    return std::accumulate(other.pipelines[p].microbatches.begin(), other.pipelines[p].microbatches.end(), 0);
  };
  EXPECT_EQ(sequences(0), 8);
  EXPECT_EQ(sequences(1), 24);
}

}  // namespace
}  // namespace optimus
