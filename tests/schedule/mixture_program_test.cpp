// Programs of MoE models: tokens are dispatched and combined, and every copy of an expert receives the
// gradients of all tokens. The properties in program_test.cpp and waits_test.cpp check that such programs
// terminate and miss no wait.
#include <gtest/gtest.h>

#include <set>

#include "plan/random_plan.h"
#include "schedule/program.h"

namespace optimus {
namespace {

Plan mixture_plan(const ModelSpec& model, int ep, int zero) {
  UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 8, .sequence_length = 8};
  shape.strategy = {.tp = 2, .sequence_parallel = true, .ep = ep, .zero = zero};
  Plan plan = uniform_plan(model, shape);
  EXPECT_EQ(find_problem(plan, model), std::nullopt);
  return plan;
}

TEST(MixtureProgram, DispatchesAndCombinesTokens) {
  const ModelSpec model = small_mixture(2, false, true);
  const Program program = compile(mixture_plan(model, 4, 0), model, 5);
  int dispatches = 0, combines = 0;
  for (const Instruction& at : program.instructions) {
    if (at.op != Op::dispatch && at.op != Op::combine) continue;
    (at.op == Op::dispatch ? dispatches : combines) += 1;
    EXPECT_EQ(at.lane, Lane::tensor);
    // One sequence of 8 positions, half of them on this device, each routed to 3 experts, hidden size 24, in
    // bf16.
    EXPECT_EQ(at.bytes, 8 / 2 * 3 * 24 * 2);
    const Group& group = program.groups[static_cast<std::size_t>(at.group)];
    EXPECT_EQ(group.role, Role::expert);
    EXPECT_EQ(group.members, (std::vector<int>{4, 5, 6, 7}));
  }
  EXPECT_EQ(dispatches, 2 * 2 * 2);  // layers, micro-batches, forward and backward
  EXPECT_EQ(combines, dispatches);
}

TEST(MixtureProgram, SingleDeviceSendsNoTokens) {
  const ModelSpec model = small_mixture(2, true, false);
  const Plan plan = uniform_plan(model, {.batch = 2, .sequence_length = 8});
  for (const Instruction& at : compile(plan, model, 0).instructions) {
    EXPECT_NE(at.op, Op::dispatch);
    EXPECT_NE(at.op, Op::combine);
  }
}

// For each block, the devices with which a device sums gradients, and the number of bytes.
TEST(MixtureProgram, SumsGradientsOfExpertCopies) {
  const ModelSpec model = small_mixture(1, false, true);
  std::int64_t expert_elements = 0;
  for (const LogicalTensor& tensor : logical_tensors(model, 1))
    if (is_expert(tensor.split.unit)) expert_elements += tensor.shape.num_elements();
  for (const int zero : {0, 1, 2, 3}) {
    const Program program = compile(mixture_plan(model, 4, zero), model, 5);
    std::set<std::vector<int>> groups;
    std::int64_t bytes = 0;
    for (const Instruction& at : program.instructions) {
      if (at.op != Op::reduce_gradients || at.block != 1) continue;
      const Group& group = program.groups[static_cast<std::size_t>(at.group)];
      groups.insert(group.members);
      if (group.members == std::vector<int>{1, 5}) bytes += at.bytes;
    }
    EXPECT_TRUE(groups.contains({1, 5})) << zero;        // the second quarter of the experts
    EXPECT_TRUE(groups.contains({1, 3, 5, 7})) << zero;  // the second tensor part of all other parameters
    // Once per step, or with ZeRO 2 and 3 once for each of two micro-batches.
    EXPECT_EQ(bytes, expert_elements / 4 * 4 * (zero >= 2 ? 2 : 1)) << zero;
  }
}

TEST(MixtureProgram, ExpertParallelismDividesState) {
  const ModelSpec model = small_mixture(2, false, false);
  const auto weights = [&](int ep) {
    return memory_use(compile(mixture_plan(model, ep, 0), model, 0)).weights.value;
  };
  const std::int64_t experts = 2 * 12 * 3 * 10 * 24 * 2;  // layers, experts, matrices, their size, bf16
  EXPECT_EQ(weights(1) - weights(4), experts * 3 / 4);
}

}  // namespace
}  // namespace optimus
