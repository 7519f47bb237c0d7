// Compares validation with an independent brute-force check, and checks the message of each rule.
#include "plan/validate.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <numeric>
#include <set>

#include "plan/random_plan.h"

namespace optimus {
namespace {

// Decides validity only, by enumeration instead of rules: lists every block of every pipeline in the order of
// computation, counts every device, and searches for every split.
bool is_valid_by_enumeration(const Plan& plan) {
  if (plan.batch < 1 || plan.sequence_length < 1 || plan.num_blocks < 3 || plan.pipelines.empty() ||
      plan.copy_distance < 0)
    return false;
  const std::set<std::pair<Precision, Precision>> pairs = {
      {Precision::fp64, Precision::fp64}, {Precision::fp32, Precision::fp32},
      {Precision::bf16, Precision::fp32}, {Precision::bf16, Precision::bf16},
      {Precision::fp16, Precision::fp32}, {Precision::fp16, Precision::fp16},
      {Precision::fp8, Precision::fp32}};
  if (!pairs.contains({plan.precision, plan.accumulators})) return false;
  const bool is_async = plan.schedule == Schedule::pipedream || plan.schedule == Schedule::pipemare;
  const bool has_scales = plan.precision == Precision::fp16 || plan.precision == Precision::fp8;
  if (is_async && (has_scales || plan.pipelines.size() != 1 || plan.copy_distance > 0)) return false;
  std::map<int, int> uses;
  std::int64_t sequences = 0;
  for (const Pipeline& pipeline : plan.pipelines) {
    if (pipeline.stages.empty() || pipeline.microbatches.empty()) return false;
    for (const int n : pipeline.microbatches) {
      if (n < 1) return false;
      sequences += n;
    }
    std::vector<std::vector<int>> by_chunk;  // blocks in order of computation
    for (const Stage& stage : pipeline.stages) {
      const int n = static_cast<int>(stage.devices.size());
      if (n == 0 || stage.chunks.size() != pipeline.stages[0].chunks.size() || stage.chunks.empty())
        return false;
      if ((stage.chunks.size() > 1) != (plan.schedule == Schedule::interleaved)) return false;
      by_chunk.resize(stage.chunks.size());
      for (const int device : stage.devices) ++uses[device];
      for (std::size_t c = 0; c < stage.chunks.size(); ++c) {
        int blocks = 0;
        for (const BlockRun& run : stage.chunks[c].runs) {
          if (run.count < 1) return false;
          for (int b = run.first_block; b < run.first_block + run.count && b < 1000; ++b)
            by_chunk[c].push_back(b), ++blocks;
          const LayerStrategy& s = run.strategy;
          if (s.tp < 1 || s.cp < 1 || s.ep < 1 || n % s.ep != 0 || s.zero < 0 || s.zero > 3 ||
              s.cp > plan.sequence_length)
            return false;
          if (s.sequence_parallel && s.tp < 2) return false;
          if (s.recompute_layers != 1 && (s.recompute_layers < 1 || s.recompute != RecomputeMode::full))
            return false;
          bool has_split = false, has_groups = s.shard_group == 0;
          for (int dp = 1; dp <= n; ++dp) has_split |= s.tp * s.cp * dp == n;
          for (int groups = 1; groups <= n; ++groups) has_groups |= s.tp * s.shard_group * groups == n;
          if (!has_split || !has_groups || (s.shard_group != 0 && s.zero == 0)) return false;
          if (is_async && s.zero > 1) return false;
          if (plan.copy_distance > 0 && s.zero > 0) {
            const int shards = s.shard_group > 0 ? s.shard_group : n / s.tp;
            if (plan.copy_distance % shards == 0) return false;
          }
        }
        if (blocks == 0) return false;
      }
    }
    std::vector<int> order;
    for (const auto& blocks : by_chunk) order.insert(order.end(), blocks.begin(), blocks.end());
    std::vector<int> wanted(static_cast<std::size_t>(plan.num_blocks));
    std::iota(wanted.begin(), wanted.end(), 0);
    if (order != wanted) return false;
  }
  for (const auto& [device, count] : uses)
    if (count != 1 || device < 0 || device >= 1'000'000) return false;
  return sequences == plan.batch;
}

// One random change; most changes make the plan invalid.
void disturb(Plan& plan) {
  using random_plan::pick;
  Pipeline& pipeline =
      plan.pipelines[static_cast<std::size_t>(pick(0, static_cast<int>(plan.pipelines.size()) - 1))];
  if (pipeline.stages.empty()) return;
  Stage& stage =
      pipeline.stages[static_cast<std::size_t>(pick(0, static_cast<int>(pipeline.stages.size()) - 1))];
  if (stage.devices.empty() || stage.chunks.empty() || stage.chunks[0].runs.empty()) return;
  BlockRun& run =
      stage.chunks[0]
          .runs[static_cast<std::size_t>(pick(0, static_cast<int>(stage.chunks[0].runs.size()) - 1))];
  switch (pick(0, 21)) {
    case 0:
      plan.batch += pick(-1, 1);
      break;
    case 1:
      run.first_block += pick(-1, 1);
      break;
    case 2:
      run.count += pick(-2, 2);
      break;
    case 3:
      run.strategy.tp = pick(0, 6);
      break;
    case 4:
      run.strategy.cp = pick(0, 6);
      break;
    case 5:
      run.strategy.zero = pick(-1, 4);
      break;
    case 6:
      run.strategy.shard_group = pick(-1, 6);
      break;
    case 7:
      run.strategy.sequence_parallel = !run.strategy.sequence_parallel;
      break;
    case 8:
      run.strategy.ep = pick(1, 2);
      break;
    case 9:
      stage.devices.push_back(pick(-1, 30));
      break;
    case 10:
      stage.devices.pop_back();
      break;
    case 11:
      stage.chunks.push_back(stage.chunks[0]);
      break;
    case 12:
      stage.chunks.pop_back();
      break;
    case 13:
      pipeline.microbatches.push_back(pick(0, 1));
      break;
    case 14:
      plan.schedule = *rc::gen::element(Schedule::gpipe, Schedule::interleaved, Schedule::pipedream);
      break;
    case 15:
      plan.precision = *rc::gen::element(Precision::fp16, Precision::fp8, Precision::fp32);
      break;
    case 16:
      plan.accumulators =
          *rc::gen::element(Precision::fp16, Precision::bf16, Precision::fp32, Precision::fp8);
      break;
    case 17:
      plan.copy_distance = pick(-1, 4);
      break;
    case 18:
      plan.num_blocks += pick(-1, 1);
      break;
    case 19:
      pipeline.stages.pop_back();
      break;
    case 21:
      run.strategy.recompute_layers = pick(-1, 3);
      break;
    case 20:
      stage.devices[0] = pick(0, 1) == 0 ? 1'000'000 : stage.devices.back();
      break;
  }
}

TEST(Validate, AgreesWithBruteForce) {
  int valid = 0, invalid = 0;
  EXPECT_TRUE(rc::check([&] {
    Plan plan = random_plan::plan_for(random_small_model());
    RC_ASSERT(!find_problem(plan).has_value());
    const int changes = random_plan::pick(1, 2);
    for (int i = 0; i < changes; ++i) disturb(plan);
    const auto problem = find_problem(plan);
    ++(problem ? invalid : valid);
    if (problem) RC_LOG() << *problem << std::endl;
    RC_ASSERT(problem.has_value() == !is_valid_by_enumeration(plan));
    if (problem) RC_ASSERT(!problem->empty() && problem->find('\n') == std::string::npos);
  }));
  EXPECT_GT(valid, 0);
  EXPECT_GT(invalid, 0);
}

Plan base_plan() {
  return uniform_plan(
      small_model(4, false),
      {.pp = 2, .dp = 2, .strategy = {.tp = 2}, .microbatch = 1, .batch = 8, .sequence_length = 16});
}

TEST(Validate, ReportsEachRule) {
  const auto says = [](auto change) {
    Plan plan = base_plan();
    change(plan);
    return find_problem(plan).value_or("valid");
  };
  const auto strategy = [](Plan& plan) -> LayerStrategy& {
    return plan.pipelines[0].stages[0].chunks[0].runs[0].strategy;
  };
  EXPECT_EQ(says([](Plan&) {}), "valid");
  EXPECT_EQ(says([](Plan& p) { p.batch = 9; }),
            "the micro-batches: expected 9 sequences in total (the batch), got 8");
  EXPECT_EQ(says([](Plan& p) { p.pipelines[0].stages[1].devices[0] = 0; }),
            "device 0 is used twice; each device may be in one stage only");
  EXPECT_EQ(says([](Plan& p) { p.pipelines[0].stages[1].chunks[0].runs[0].first_block = 4; }),
            "pipeline 0, stage 1, chunk 0: expected to start at block 3, got 4");
  EXPECT_EQ(says([&](Plan& p) { strategy(p).tp = 3; }),
            "pipeline 0, stage 0, block 0: 4 devices are not divisible by tp 3 x cp 1");
  EXPECT_EQ(says([&](Plan& p) { strategy(p).zero = 4; }),
            "pipeline 0, stage 0, block 0: zero: expected 0, 1, 2 or 3, got 4");
  EXPECT_EQ(says([&](Plan& p) { strategy(p).shard_group = 2; }),
            "pipeline 0, stage 0, block 0: shard_group 2 needs zero 1, 2 or 3");
  EXPECT_EQ(
      says([&](Plan& p) { strategy(p).recompute_layers = 2; }),
      "pipeline 0, stage 0, block 0: recompute_layers: expected 1, or more if recompute is full, got 2");
  EXPECT_EQ(says([](Plan& p) { p.schedule = Schedule::interleaved; }),
            "pipeline 0: schedule interleaved: expected at least 2 chunks per stage, got 1");
  EXPECT_EQ(says([&](Plan& p) { p.schedule = Schedule::pipedream, strategy(p).zero = 3; }),
            "schedule pipedream stores several versions of the weights: expected zero 0 or 1, got 3");
  EXPECT_EQ(says([](Plan& p) { p.accumulators = Precision::bf16, p.precision = Precision::fp32; }),
            "accumulators of bf16 cannot be combined with precision fp32; use fp32");
}

TEST(Validate, MixturesOfExperts) {
  const ModelSpec model = small_mixture(4, false, false);
  UniformPlan shape{.dp = 8, .strategy = {.ep = 4}, .batch = 8, .sequence_length = 16};
  EXPECT_EQ(find_problem(uniform_plan(model, shape), model), std::nullopt);
  EXPECT_EQ(*find_problem(uniform_plan(small_model(4, false), shape), small_model(4, false)),
            "block 0: ep is 4, but llama3-8b is dense and has no experts; use 1");
  shape.strategy.ep = 3;
  EXPECT_EQ(*find_problem(uniform_plan(model, shape), model),
            "pipeline 0, stage 0, block 0: ep: expected a divisor of 8 (the number of devices in the stage), "
            "got 3");
  shape.strategy.ep = 8;
  EXPECT_EQ(*find_problem(uniform_plan(model, shape), model),
            "block 0: ep: expected a divisor of the 12 experts of llama3-8b, got 8");
  shape.strategy.ep = 4, shape.strategy.tp = 2, shape.dp = 4;
  EXPECT_EQ(*find_problem(uniform_plan(model, shape), model),
            "block 0: tp 2 needs sequence_parallel in llama3-8b, whose experts process each device's own "
            "positions");
  shape.strategy.sequence_parallel = true, shape.strategy.zero = 1;
  Plan plan = uniform_plan(model, shape);
  EXPECT_EQ(find_problem(plan, model), std::nullopt);
  plan.copy_distance = 1;
  EXPECT_EQ(*find_problem(plan, model),
            "block 0: redundant copies of expert state are not supported yet; use copy_distance 0");
}

TEST(Validate, ChecksPlanAgainstModel) {
  const ModelSpec model = small_model(4, false);
  EXPECT_EQ(find_problem(base_plan(), model), std::nullopt);
  EXPECT_EQ(*find_problem(base_plan(), small_model(5, false)),
            "the plan is for a model with 4 layers, but llama3-8b has 5; change --layers or the plan");
  Plan wide = uniform_plan(model, {.strategy = {.tp = 8}, .batch = 1, .sequence_length = 16});
  EXPECT_EQ(*find_problem(wide, model),
            "block 0: tp 8 is more than the 6 heads of llama3-8b; each device needs at least one");
  Plan longer = base_plan();
  longer.sequence_length = 65;
  EXPECT_EQ(*find_problem(longer, model),
            "the sequence length 65 is longer than the 64 positions of llama3-8b");
  Plan async = base_plan();
  async.schedule = Schedule::pipedream;
  EXPECT_EQ(*find_problem(async, small_model(4, true)),
            "schedule pipedream updates stages at different times and needs an untied embedding if first and "
            "last stage differ");
}

}  // namespace
}  // namespace optimus
