// Switches between random plans: the layouts of the state, their difference, and the assignment of positions
// to ranks.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "layout/assign.h"
#include "layout/diff.h"
#include "layout/property.h"
#include "layout/verify.h"
#include "plan/layouts.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

struct Pair {
  ModelSpec model;
  Layout from, to;
};

Pair random_pair() {
  Pair pair;
  pair.model = random_small_model();
  const random_plan::Limits limits{
      .most_stages = 3, .most_width = 4, .most_pipelines = 2, .most_microbatches = 2};
  const auto kind = *rc::gen::element(StateKind::weights, StateKind::optimizer);
  const auto layout = [&] {
    Plan plan = random_plan::plan_for(pair.model, limits);
    if (random_plan::pick(0, 2) == 0) random_plan::enable_shard_copies(plan, random_plan::pick(1, 3));
    return layout_with_copies(plan, pair.model, kind);
  };
  pair.from = layout(), pair.to = layout();
  // The two plans may differ in precision; moved bytes are counted in the old plan's precision.
  for (std::size_t t = 0; t < pair.to.tensors.size(); ++t) pair.to.tensors[t] = pair.from.tensors[t];
  return pair;
}

TEST(Switch, MovesMinimumBetweenRandomPlans) {
  EXPECT_TRUE(holds("switch", 40, [] {
    const auto [model, from, to] = random_pair();
    const auto plan = diff(from, to);
    if (!plan) RC_FAIL(plan.error().why);
    RC_ASSERT(plan->moved == plan->lower_bound);
    RC_ASSERT(plan->moved <= plan->full_fetch_bytes);
    const auto checked = verify(from, to, *plan);
    if (!checked) RC_FAIL(checked.error().why);
    // With the best assignment exactly the missing data moves, and never more than without it.
    std::vector<Rank> available;
    for (int rank = 0; rank < std::max(num_ranks(from), num_ranks(to)); ++rank)
      available.push_back(Rank{rank});
    const Assignment best = assign_devices(from, to, available);
    const auto moved = diff(from, with_devices(to, best.device_of));
    RC_ASSERT(moved.has_value());
    RC_ASSERT(moved->moved == best.needed_bytes - best.bytes_in_place);
    RC_ASSERT(moved->moved <= plan->moved);
    RC_ASSERT(best.is_exact);
  }));
}

}  // namespace
}  // namespace optimus
