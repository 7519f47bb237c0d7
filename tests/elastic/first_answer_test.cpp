// The plan that a run uses when ranks are lost or join, before the planner has finished, and the plan that it
// moves to afterwards.
#include "elastic/first_answer.h"

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
  FirstAnswers::Facts facts() const { return first_answers(options, model, {}, 8); }
  Plan copies(int dp, int pp = 1) const {
    UniformPlan plan{.pp = pp, .dp = dp, .batch = 16, .sequence_length = 16};
    plan.microbatch = 1;
    return uniform_plan(model, plan);
  }
  ModelSpec model;
  TrainOptions options;
};

// A planner that blocks until it is released.
struct LatePlanner {
  FirstAnswers::Facts late(FirstAnswers::Facts facts) {
    facts.choose = [choose = facts.choose, may = may_go_on.get_future().share()](int size) {
      may.wait();
      return choose(size);
    };
    return facts;
  }
  std::promise<void> may_go_on;
};

TEST(FirstAnswer, TheRestTakesOver) {
  const Training4 training;
  const Plan dp4 = training.copies(4);
  const std::optional<Plan> three = taken_over({dp4, 4, 3});
  ASSERT_TRUE(three);
  EXPECT_EQ(num_devices(*three), 3);
  EXPECT_FALSE(problem_in(*three, training.model));
  // Two pipelines of two stages: one pipeline continues alone when a device of the other is lost.
  Plan two = training.copies(1, 2);
  Pipeline other = two.pipelines[0];
  for (Stage& stage : other.stages)
    for (int& device : stage.devices) device += 2;
  two.pipelines.push_back(other);
  for (Pipeline& pipeline : two.pipelines) pipeline.microbatches.resize(8);
  const std::optional<Plan> one = taken_over({two, 4, 3});
  ASSERT_TRUE(one);
  EXPECT_EQ(num_devices(*one), 2);
  EXPECT_FALSE(problem_in(*one, training.model));
  // Each stage exists only once.
  EXPECT_FALSE(taken_over({training.copies(1, 4), 4, 3}));
}

TEST(FirstAnswer, WhatIsAtHandAndThenThePlanner) {
  const Training4 training;
  LatePlanner planner;
  FirstAnswers::Facts facts = planner.late(training.facts());
  const Plan dp8 = training.copies(8);
  FirstAnswers answers(facts);
  std::optional<FirstAnswer> quick;
  // Templates are made on a thread; until they are available, the remaining ranks take over.
  for (int look = 0; look < 2000 && (!quick || quick->kind != FirstAnswer::Kind::of_templates); ++look) {
    quick = answers.answer(5, WhereStateIs{dp8, 5, 5});
    EXPECT_NE(quick->kind, FirstAnswer::Kind::planned);
    EXPECT_FALSE(problem_in(quick->plan, training.model)) << text(quick->kind);
    if (quick->kind == FirstAnswer::Kind::takeover && look > 200) break;  // as fast as the template plan
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(answers.is_settled(5));
  EXPECT_FALSE(answers.improvement(*quick, 5));
  planner.may_go_on.set_value();
  for (int look = 0; look < 2000 && !answers.is_settled(5); ++look)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(answers.answer(5, std::nullopt).kind, FirstAnswer::Kind::planned);
  // A plan that is slower than the planner's by more than the threshold.
  const FirstAnswer slow{training.copies(1), FirstAnswer::Kind::takeover};
  const std::optional<Plan> better = answers.improvement(slow, 5);
  ASSERT_TRUE(better);
  EXPECT_LT(facts.step_seconds(*better), facts.step_seconds(slow.plan));
  EXPECT_FALSE(answers.improvement({*better, FirstAnswer::Kind::takeover}, 5));
  EXPECT_FALSE(answers.improvement({slow.plan, FirstAnswer::Kind::planned}, 5));
}

TEST(FirstAnswer, NothingFits) {
  FirstAnswers answers({.choose = [](int) -> Plan { throw UserError("no"); },
                        .make_templates = []() -> PipelineTemplates { throw UserError("no"); }});
  EXPECT_THROW(answers.answer(3, std::nullopt), UserError);
}

}  // namespace
}  // namespace optimus
