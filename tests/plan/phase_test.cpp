// Phases of a training: when batches and lengths grow, and that a plan for another batch is still a plan.
#include "plan/phase.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "base/options.h"
#include "model/presets.h"
#include "plan/validate.h"

namespace optimus {
namespace {

TEST(Phases, DoubleInEqualStretches) {
  EXPECT_EQ(phases_of("8:3000", 64, "", 1024),
            (std::vector<Phase>{{0, 8, 1024}, {1000, 16, 1024}, {2000, 32, 1024}, {3000, 64, 1024}}));
  EXPECT_EQ(phases_of("", 64, "", 1024), (std::vector<Phase>{{0, 64, 1024}}));
  EXPECT_EQ(phases_of("3:10", 5, "", 16), (std::vector<Phase>{{0, 3, 16}, {10, 5, 16}}))
      << "it ends where it is to";
  EXPECT_EQ(phases_of("8:20", 16, "256:20", 1024),
            (std::vector<Phase>{{0, 8, 256}, {10, 8, 512}, {20, 16, 1024}}));
}

TEST(Phases, ANumberOfStepsHasOne) {
  const std::vector<Phase> phases = phases_of("8:3000", 64, "", 1024);
  EXPECT_EQ(phase_at(phases, 0).batch, 8);
  EXPECT_EQ(phase_at(phases, 999).batch, 8);
  EXPECT_EQ(phase_at(phases, 1000).batch, 16) << "the step behind 1000 ones";
  EXPECT_EQ(phase_at(phases, 1'000'000).batch, 64);
}

TEST(Phases, MistakesAreTold) {
  for (const char* words : {"8", "8:", ":3", "8:3:4", "8:x", "-8:30", "8:0", "0:8"})
    EXPECT_THROW((void)phases_of(words, 64, "", 1024), UsageError) << words;
  EXPECT_THROW((void)phases_of("64:30", 64, "", 1024), UsageError) << "it does not grow";
  EXPECT_EQ(text(Phase{0, 8, 256}, Phase{9, 16, 512}), "batch 8 → 16, sequences of 256 → 512 tokens");
}

// Any grid, any batch that has a sequence for each pipeline.
TEST(Phases, APlanForAnotherBatchIsAPlan) {
  const ModelSpec model = *find_preset("gpt2");
  rc::check([&] {
    UniformPlan shape{
        .pp = *rc::gen::inRange(1, 5), .dp = *rc::gen::inRange(1, 5), .microbatch = *rc::gen::inRange(1, 4)};
    shape.batch = *rc::gen::inRange(8, 200), shape.sequence_length = 128;
    if (shape.pp > 1 && *rc::gen::arbitrary<bool>()) shape.chunks = 2, shape.schedule = Schedule::interleaved;
    const Plan plan = uniform_plan(model, shape);
    RC_PRE(!problem_in(plan, model));
    const std::int64_t batch = *rc::gen::inRange<std::int64_t>(shape.dp * shape.pp * 2, 400);
    const Plan other = with_batch(plan, batch, 256);
    const auto problem = problem_in(other, model);
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
  ASSERT_EQ(problem_in(plan, model), std::nullopt);
  const Plan other = with_batch(plan, 32, 128);
  EXPECT_EQ(problem_in(other, model), std::nullopt);
  const auto sequences = [&](std::size_t p) {
    return std::accumulate(other.pipelines[p].microbatches.begin(), other.pipelines[p].microbatches.end(), 0);
  };
  EXPECT_EQ(sequences(0), 8);
  EXPECT_EQ(sequences(1), 24);
}

}  // namespace
}  // namespace optimus
