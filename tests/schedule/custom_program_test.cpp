// Programs of models that consist of custom blocks.
#include <gtest/gtest.h>

#include "model/custom_model.h"
#include "plan/layouts.h"
#include "plan/validate.h"
#include "schedule/activation_buffer.h"
#include "schedule/execute.h"

namespace optimus {
namespace {

std::vector<std::string> computes(const Program& program) {
  std::vector<std::string> result;
  for (const Instruction& instruction : program.instructions)
    if (instruction.lane == Lane::compute && instruction.microbatch >= 0)
      result.push_back(text(instruction.op) + " " + std::to_string(instruction.block));
  return result;
}

Plan plan_of(UniformPlan shape) {
  shape.precision = Precision::fp32;
  return uniform_plan(custom_model(), shape);
}

using Texts = std::vector<std::string>;

TEST(CustomProgram, ComputesGradientsTogetherAndLossOnce) {
  EXPECT_EQ(computes(compile(plan_of({.microbatch = 4, .batch = 4}), custom_model(), 0)),
            (Texts{"forward 0", "forward 1", "forward 2", "backward_input 2", "backward_weight 2",
                   "backward_input 1", "backward_weight 1", "backward_weight 0"}));
  EXPECT_EQ(
      computes(compile(plan_of({.strategy = {.recompute = RecomputeMode::full}, .microbatch = 4, .batch = 4}),
                       custom_model(), 0)),
      (Texts{"forward 0", "forward 1", "forward 2", "backward_input 2", "backward_weight 2", "recompute 1",
             "backward_input 1", "backward_weight 1", "recompute 0", "backward_weight 0"}));
}

// Four samples. All graphs are live when the forward of the last block runs; with recompute only one at a
// time.
TEST(CustomProgram, AutogradMemoryIsOutsideArena) {
  const Arena saved = plan_arena(compile(plan_of({.microbatch = 4, .batch = 4}), custom_model(), 0));
  EXPECT_EQ(saved.autograd_peak.value, 4 * (1024 + 2048 + 512) + 1024);
  const Arena again = plan_arena(
      compile(plan_of({.strategy = {.recompute = RecomputeMode::full}, .microbatch = 4, .batch = 4}),
              custom_model(), 0));
  EXPECT_EQ(again.autograd_peak.value, 4 * (2048 + 256));
  EXPECT_LT(saved.bytes.value, 4 * 4 * (30 + 40 + 20 + 40 + 20) + 5 * kAlignment);
}

TEST(CustomProgram, RunsUnderEverySchedule) {
  const ModelSpec model = custom_model();
  for (const Schedule schedule :
       {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble, Schedule::pipedream})
    for (const int zero : {0, 1, 2, 3})
      for (const int pp : {1, 2, 3}) {
        if (is_asynchronous(schedule) && zero > 1) continue;
        const Plan plan = plan_of({.pp = pp,
                                   .dp = 2,
                                   .strategy = {.zero = zero},
                                   .microbatch = 2,
                                   .batch = 12,
                                   .schedule = schedule});
        ASSERT_EQ(find_problem(plan, model), std::nullopt) << text(schedule);
        const std::vector<Program> programs = compile_all(plan, model);
        const Outcome<Timeline> done =
            execute(programs, [](const Program&, const Instruction&) { return 1; });
        ASSERT_TRUE(done) << done.error().why;
        int gradients = 0;
        for (const Program& program : programs)
          for (const Instruction& instruction : program.instructions) {
            gradients += instruction.op == Op::backward_weight;
            // Between blocks 0 and 1, 40 elements of each of a replica's two samples are sent; between blocks
            // 1 and 2, 20 elements.
            if (instruction.op != Op::send) continue;
            EXPECT_TRUE(instruction.bytes == 2 * 4 * 40 || instruction.bytes == 2 * 4 * 20)
                << instruction.bytes;
          }
        EXPECT_EQ(gradients, 3 * 3 * 2);  // blocks, micro-batches, replicas
      }
}

TEST(CustomProgram, RefusesUnsupportedSplits) {
  const ModelSpec model = custom_model();
  const auto problem = [&](UniformPlan shape) { return find_problem(plan_of(shape), model).value_or(""); };
  EXPECT_EQ(problem({.batch = 2}), "");
  EXPECT_NE(problem({.strategy = {.tp = 2}, .batch = 2}).find("tp 2"), std::string::npos);
  EXPECT_NE(problem({.strategy = {.cp = 2}, .batch = 2, .sequence_length = 2}).find("use 1"),
            std::string::npos);
  EXPECT_NE(
      problem({.strategy = {.recompute = RecomputeMode::selective}, .batch = 2}).find("use none or full"),
      std::string::npos);
  EXPECT_NE(problem({.batch = 2, .sequence_length = 3}).find("sequence length is 3"), std::string::npos);
}

}  // namespace
}  // namespace optimus
