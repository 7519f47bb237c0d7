// A random valid plan with its model, for property tests of programs.
#pragma once

#include "plan/random_plan.h"

namespace optimus {

struct Case {
  ModelSpec model;
  Plan plan;
};

inline Case random_case(const random_plan::Limits& limits = {
                            .most_stages = 4, .most_width = 4, .most_pipelines = 2, .most_microbatches = 4}) {
  Case result;
  result.plan = random_plan::plan_for(random_small_model(), limits);
  result.model = small_model(result.plan.num_blocks - 2,
                             !is_asynchronous(result.plan.schedule) && *rc::gen::arbitrary<bool>());
  if (random_plan::pick(0, 2) == 0) {
    result.model =
        small_mixture(result.plan.num_blocks - 2, result.model.is_tied, *rc::gen::arbitrary<bool>());
    random_plan::deal_experts(result.plan);
  }
  RC_ASSERT(find_problem(result.plan, result.model) == std::nullopt);
  return result;
}

}  // namespace optimus
