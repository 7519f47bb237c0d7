// What is believed of plans that have not run: as much as of those that have.
#include "adapt/prediction_memory.h"

#include <gtest/gtest.h>

#include "cluster/standard.h"
#include "model/presets.h"
#include "run/expected.h"
#include "schedule/program.h"

namespace optimus {
namespace {

const ModelSpec& gpt2() {
  static const ModelSpec model = *find_preset("gpt2");
  return model;
}
Plan grid(int pp, int dp) {
  return uniform_plan(gpt2(), {.pp = pp, .dp = dp, .microbatch = 1, .batch = 64, .sequence_length = 512});
}

TEST(PredictionMemory, AKindThatHasRunIsBelievedByThat) {
  PredictionMemory memory;
  memory.saw(grid(4, 1), 1, 2, true);
  EXPECT_DOUBLE_EQ(memory.trust_in(grid(2, 1), grid(4, 1)).factor, 2);
  EXPECT_DOUBLE_EQ(memory.trust_in(grid(2, 1), grid(4, 1)).doubt, 0);
  const auto other = memory.trust_in(grid(1, 4), grid(4, 1));
  EXPECT_DOUBLE_EQ(other.factor, 2);
  EXPECT_DOUBLE_EQ(other.doubt, std::log(2.0)) << "the model was wrong by that much here, and may be there";
  memory.saw(grid(1, 4), 1, 3, false);
  EXPECT_DOUBLE_EQ(memory.trust_in(grid(1, 2), grid(4, 1)).factor, 3);
  EXPECT_DOUBLE_EQ(memory.trust_in(grid(1, 2), grid(4, 1)).doubt, 0);
  EXPECT_TRUE(memory.knows_quiet(grid(2, 1)));
  EXPECT_FALSE(memory.knows_quiet(grid(1, 4))) << "seen while something was slow";
}

// Shards are gathered and summed by other collectives than copies; all else is the same.
TEST(PredictionMemory, StateThatIsCutIsALittleDoubted) {
  const auto copies = [](int zero) {
    UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 512};
    shape.strategy.zero = zero;
    return uniform_plan(gpt2(), shape);
  };
  PredictionMemory memory;
  memory.saw(copies(0), 1, 2, true);
  const auto near = memory.trust_in(copies(1), copies(0)), far = memory.trust_in(grid(4, 1), copies(0));
  EXPECT_DOUBLE_EQ(near.factor, 2);
  EXPECT_GT(near.doubt, 0);
  EXPECT_GT(far.doubt, 2 * near.doubt);
  memory.saw(copies(2), 1, 3, true);
  EXPECT_DOUBLE_EQ(memory.trust_in(copies(1), copies(0)).factor, 3);
  EXPECT_DOUBLE_EQ(memory.trust_in(copies(1), copies(0)).doubt, 0);
}

TEST(PredictionMemory, AHeavyHeadMakesTheLastStageSlow) {
  const Cluster cluster(standard_cluster("v100x4"));
  const RoleRates even{1, 1, 1}, heavy{1, 1, 5};
  EXPECT_DOUBLE_EQ(stage_factor(grid(4, 1), gpt2(), cluster, cluster, even), 1);
  const double stages = stage_factor(grid(4, 1), gpt2(), cluster, cluster, heavy),
               copies = stage_factor(grid(1, 4), gpt2(), cluster, cluster, heavy);
  EXPECT_GT(copies, 1);
  EXPECT_GT(stages, 1.5 * copies) << "where all have a part of the head it weighs less";
}

// A run that leaves devices out has plans whose numbers go further than there are devices.
TEST(PredictionMemory, DevicesBetweenMayBeMissing) {
  const Plan whole = grid(1, 4);
  Plan gaps = whole;
  gaps.pipelines[0].stages[0].devices = {0, 1, 4, 5};
  const std::vector<double> usual = predicted_seconds("cpu", whole, gpt2(), compile(whole, gpt2(), 3)),
                            other = predicted_seconds("cpu", gaps, gpt2(), compile(gaps, gpt2(), 5));
  ASSERT_FALSE(usual.empty());
  EXPECT_EQ(usual, other);
}

}  // namespace
}  // namespace optimus
