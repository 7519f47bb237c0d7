// Shared by tests of fp8 GEMMs: plans with fp8, and the comparison with one device.
#pragma once

#include "engine/equal_training.h"
#include "plan/fp8.h"

namespace optimus {

// The plan with all layers in fp8.
inline Plan in_fp8(Plan plan, int window = 3) {
  plan.fp8.window = window, plan.fp8.blocks.clear();
  for (int block = 1; block < plan.num_blocks - 1; ++block) plan.fp8.blocks.push_back(block);
  return plan;
}

inline void expect_fp8_equal_to_one_device(const ModelSpec& model, const Plan& plan, int steps = 4) {
  ASSERT_EQ(find_problem(plan, model), std::nullopt);
  Plan alone = one_device(model, plan.batch);
  alone.fp8 = plan.fp8;
  expect_equal(model, plan, train(model, alone, steps), train(model, plan, steps));
}

}  // namespace optimus
