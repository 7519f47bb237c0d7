// The plan that a run uses when ranks are lost or join, before the planner has finished, and the plan that it
// moves to afterwards.
#include "elastic/interim_plan.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "plan/random_plan.h"
#include "plan/validate.h"
#include "settings/choose_plan.h"

namespace optimus {
namespace {

struct Training4 {
  Training4() {
    model = small_model(4, true);
    options.batch = 16, options.sequence_length = 16, options.precision = "fp32";
  }
  InterimPlanner::Inputs facts() const { return first_answers(planner_request(options, model, {}), 8); }
  Plan copies(int dp, int pp = 1) const {
    UniformPlan plan{.pp = pp, .dp = dp, .batch = 16, .sequence_length = 16};
    plan.microbatch = 1;
    return uniform_plan(model, plan);
  }
  ModelSpec model;
  TrainOptions options;
};

// A planner that blocks until it is released.
struct BlockedPlanner {
  InterimPlanner::Inputs late(InterimPlanner::Inputs facts) {
    facts.choose = [choose = facts.choose, may = may_go_on.get_future().share()](int size) {
      may.wait();
      return choose(size);
    };
    return facts;
  }
  std::promise<void> may_go_on;
};

TEST(InterimPlan, RemainingRanksTakeOver) {
  const Training4 training;
  const Plan dp4 = training.copies(4);
  const std::optional<Plan> three = takeover_plan({dp4, 4, 3});
  ASSERT_TRUE(three);
  EXPECT_EQ(num_devices(*three), 3);
  EXPECT_FALSE(find_problem(*three, training.model));
  // Two pipelines of two stages: one pipeline continues alone when a device of the other is lost.
  Plan two = training.copies(1, 2);
  Pipeline other = two.pipelines[0];
  for (Stage& stage : other.stages)
    for (int& device : stage.devices) device += 2;
  two.pipelines.push_back(other);
  for (Pipeline& pipeline : two.pipelines) pipeline.microbatches.resize(8);
  const std::optional<Plan> one = takeover_plan({two, 4, 3});
  ASSERT_TRUE(one);
  EXPECT_EQ(num_devices(*one), 2);
  EXPECT_FALSE(find_problem(*one, training.model));
  // Each stage exists only once.
  EXPECT_FALSE(takeover_plan({training.copies(1, 4), 4, 3}));
}

TEST(InterimPlan, UsesSubstituteUntilPlannerFinishes) {
  const Training4 training;
  BlockedPlanner planner;
  InterimPlanner::Inputs facts = planner.late(training.facts());
  const Plan dp8 = training.copies(8);
  InterimPlanner answers(facts);
  std::optional<InterimPlan> interim;
  // Templates are made on a thread; until they are available, the remaining ranks take over.
  for (int poll = 0; poll < 2000 && (!interim || interim->kind != InterimPlan::Kind::from_templates);
       ++poll) {
    interim = value_or_throw(answers.plan_for(5, StateLocation{dp8, 5, 5}));
    EXPECT_NE(interim->kind, InterimPlan::Kind::planned);
    EXPECT_FALSE(find_problem(interim->plan, training.model)) << text(interim->kind);
    if (interim->kind == InterimPlan::Kind::takeover && poll > 200) break;  // as fast as the template plan
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(answers.is_settled(5));
  EXPECT_FALSE(answers.improvement(*interim, 5));
  planner.may_go_on.set_value();
  for (int poll = 0; poll < 2000 && !answers.is_settled(5); ++poll)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(answers.plan_for(5, std::nullopt)->kind, InterimPlan::Kind::planned);
  // A plan that is slower than the planner's by more than the threshold.
  const InterimPlan slow{training.copies(1), InterimPlan::Kind::takeover};
  const std::optional<Plan> better = answers.improvement(slow, 5);
  ASSERT_TRUE(better);
  EXPECT_LT(*facts.step_seconds(*better), *facts.step_seconds(slow.plan));
  EXPECT_FALSE(answers.improvement({*better, InterimPlan::Kind::takeover}, 5));
  EXPECT_FALSE(answers.improvement({slow.plan, InterimPlan::Kind::planned}, 5));
}

TEST(InterimPlan, ReportsWhyNoPlanFits) {
  InterimPlanner answers(
      {.choose = [](int size) -> Feasible<Plan> { return infeasible("no plan for {}", size); },
       .make_templates = []() -> Feasible<PipelineTemplates> { return infeasible("no templates"); }});
  const Feasible<InterimPlan> refused = answers.plan_for(3, std::nullopt);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().why, "no plan for 3");
}

}  // namespace
}  // namespace optimus
