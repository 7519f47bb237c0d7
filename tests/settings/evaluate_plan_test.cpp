#include "settings/evaluate_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "model/presets.h"
#include "plan/plan_json.h"

namespace optimus::test {
namespace {

TEST(EvaluationPlan, DeviceCountsMustAgree) {
  EXPECT_EQ(num_devices(EvalLayout{}), 1);
  EXPECT_EQ(num_devices(EvalLayout{.devices = 6}), 6);
  EXPECT_EQ(num_devices(EvalLayout{.tp = 2, .dp = 3}), 6);
  EXPECT_EQ(num_devices(EvalLayout{.devices = 8, .tp = 2, .pp = 2}), 8);
  for (const EvalLayout& wrong :
       {EvalLayout{.devices = 5, .tp = 2}, EvalLayout{.devices = 8, .tp = 2, .dp = 3},
        EvalLayout{.devices = 0}, EvalLayout{.zero = 4}, EvalLayout{.tp = 4000, .pp = 4000},
        EvalLayout{.devices = 2, .tp = 4}})
    EXPECT_THROW(num_devices(wrong), UsageError);
}

TEST(EvaluationPlan, UsesTrainingPlanUnchanged) {
  const TemporaryFolder folder;
  const ModelSpec model = *find_preset("gpt2");
  UniformPlan shape{.pp = 2, .dp = 2, .batch = 8, .sequence_length = 64, .precision = Precision::fp32};
  const Path file = folder.write("plan.json", plan_text(uniform_plan(model, shape)));
  const EvalLayout layout{.plan = file};
  EXPECT_EQ(num_devices(layout), 4);
  const Plan plan = evaluation_plan(layout, model, {.windows = 9, .sequence_length = 32});
  EXPECT_EQ(plan.sequence_length, 32);
  EXPECT_EQ(plan.batch, 8);
  EXPECT_THROW(num_devices(EvalLayout{.devices = 3, .plan = file}), UsageError);
  EXPECT_THROW(num_devices(EvalLayout{.tp = 2, .plan = file}), UsageError);
}

}  // namespace
}  // namespace optimus::test
