// Any plan trains like one device: uneven stages, layers of a stage that are split differently, several
// pipelines of different depth and width, micro-batches of different sizes, any number of ranks. See
// parallel_test.cpp for plans with equal stages.
#include <rapidcheck.h>

#include <cstdlib>
#include <sstream>

#include "engine/equal_training.h"
#include "layout/property.h"
#include "plan/plan_json.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

// Removes what the engine does not support: offloaded state, and different splits of an embedding that both
// ends of one stage share.
void make_runnable(Plan& plan) {
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages) {
      for (Chunk& chunk : stage.chunks)
        for (BlockRun& run : chunk.runs) run.strategy.offload = false;
      if (stage.chunks.front().first_block() != 0 || stage.chunks.back().end_block() != plan.num_blocks)
        continue;
      BlockRun &first = stage.chunks.front().runs.front(), &last = stage.chunks.back().runs.back();
      last.strategy = first.strategy;
    }
}

Plan random_plan_for(const ModelSpec& model, int most_devices) {
  for (;;) {
    Plan plan = random_plan::plan_for(
        model, {.most_stages = 3, .most_width = 4, .most_pipelines = 2, .most_microbatches = 3});
    if (is_asynchronous(plan.schedule) || num_devices(plan) > most_devices || num_devices(plan) < 2) continue;
    plan.sequence_length = kLength, plan.precision = plan.accumulators = Precision::fp64;
    make_runnable(plan);
    if (!find_problem(plan, model)) return plan;  // tp may exceed the number of heads
  }
}

TEST(AnyPlan, MatchesOneDevice) {
  const std::vector<std::string> presets = {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"};
  EXPECT_TRUE(holds("plans", 40, [&] {
    if (testing::Test::HasFailure()) return;
    const std::string preset = *rc::gen::elementOf(presets);
    const int kv_heads = random_plan::pick(1, 3), layers = random_plan::pick(1, 5);
    const int heads = kv_heads * random_plan::pick(2, 3);
    const ModelSpec model = model_of(preset, heads, kv_heads, layers);
    const Plan plan = random_plan_for(model, 8);
    SCOPED_TRACE(
        fmt::format("OPTIMUS_PLAN='{} {} {} {} {}'", preset, heads, kv_heads, layers, to_json(plan).dump()));
    expect_equal_to_one_device(model, plan, 3);
  }));
}

// Runs one plan, in the form in which the test above prints failing plans.
TEST(AnyPlan, RunsPlanFromEnvironment) {
  const char* const given = std::getenv("OPTIMUS_PLAN");
  if (given == nullptr) GTEST_SKIP() << "no plan in $OPTIMUS_PLAN";
  std::istringstream words(given);
  std::string preset, json;
  int heads = 0, kv_heads = 0, layers = 0;
  words >> preset >> heads >> kv_heads >> layers;
  std::getline(words, json);
  const ModelSpec model = model_of(preset, heads, kv_heads, layers);
  expect_equal_to_one_device(model, parse_plan(json, "$OPTIMUS_PLAN"), 3);
}

}  // namespace
}  // namespace optimus
