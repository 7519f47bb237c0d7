// fp8 GEMMs under any plan: see fp8_test.cpp for plans with equal stages, and for the tolerance.
#include <rapidcheck.h>

#include "engine/fp8_training.h"
#include "layout/property.h"
#include "plan/plan_json.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

// Uneven stages and layers, several pipelines; some layers in fp8, others not.
TEST(Fp8, AnyPlanEqualsOneDevice) {
  const std::vector<std::string> presets = {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"};
  EXPECT_TRUE(holds("plans", 20, [&] {
    if (testing::Test::HasFailure()) return;
    const ModelSpec model = model_of(*rc::gen::elementOf(presets), 4, 2, random_plan::pick(2, 4));
    Plan plan = random_plan::plan_for(
        model, {.most_stages = 3, .most_width = 3, .most_pipelines = 2, .most_microbatches = 3});
    plan.sequence_length = kLength, plan.precision = plan.accumulators = Precision::fp64;
    for (Pipeline& pipeline : plan.pipelines)
      for (Stage& stage : pipeline.stages)
        for (Chunk& chunk : stage.chunks)
          for (BlockRun& run : chunk.runs) run.strategy.offload = false;
    plan = in_fp8(plan, random_plan::pick(1, 3));
    if (random_plan::pick(0, 1) == 1) plan.fp8.blocks.pop_back();
    if (unsupported_reason(plan, model)) RC_DISCARD("the engine does not support this plan");
    if (num_devices(plan) > 8) RC_DISCARD("too many ranks for a test");
    SCOPED_TRACE(model.name + to_json(plan).dump());
    expect_fp8_equal_to_one_device(model, plan, 3);
  }));
}

}  // namespace
}  // namespace optimus
