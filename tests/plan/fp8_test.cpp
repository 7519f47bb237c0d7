// fp8 GEMMs as plain data: scales, histories, slots, and the field in the plan file.
#include "plan/fp8.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>

#include "base/temporary_folder.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "plan/random_plan.h"
#include "plan/validate.h"

namespace optimus {
namespace {

TEST(Fp8, ScaleIsLargestPowerOfTwoThatFits) {
  EXPECT_TRUE(rc::check([] {
    const auto operand = *rc::gen::element(Fp8Operand::input, Fp8Operand::weight, Fp8Operand::gradient);
    const double largest = operand == Fp8Operand::gradient ? 57344 : 448;
    const float maximum = std::ldexp(1 + static_cast<float>(*rc::gen::inRange(0, 1 << 23)) * 0x1p-23f,
                                     *rc::gen::inRange(-100, 127));
    const double scaled = std::ldexp(double{maximum}, fp8_exponent(operand, maximum));
    RC_ASSERT(scaled <= largest);
    RC_ASSERT(2 * scaled > largest);
  }));
}

TEST(Fp8, ScalesOfZeroTinyAndHugeMaxima) {
  EXPECT_EQ(fp8_exponent(Fp8Operand::input, 0), 0);
  EXPECT_EQ(fp8_exponent(Fp8Operand::input, 448), 0);
  EXPECT_EQ(fp8_exponent(Fp8Operand::input, std::nextafter(448.0f, 1000.0f)), -1);
  EXPECT_EQ(fp8_exponent(Fp8Operand::gradient, 57344), 0);
  EXPECT_EQ(fp8_exponent(Fp8Operand::gradient, 1), 15);
  EXPECT_EQ(fp8_exponent(Fp8Operand::input, std::numeric_limits<float>::denorm_min()), 126);
  EXPECT_EQ(fp8_exponent(Fp8Operand::input, std::numeric_limits<float>::max()), -120);
}

TEST(Fp8, SpikeLeavesHistoryWithItsStep) {
  Fp8History history;
  const int window = 4;
  for (int step = 0; step < 3; ++step) history.add({1}, window);
  history.add({1000}, window);
  for (int step = 0; step < window - 1; ++step) {
    EXPECT_EQ(history.maximum(0), 1000) << step;
    history.add({2}, window);
  }
  EXPECT_EQ(history.maximum(0), 1000);
  history.add({2}, window);
  EXPECT_EQ(history.maximum(0), 2);
  EXPECT_EQ(std::ssize(history.steps), window);
}

TEST(Fp8, NonFiniteMaximaAreReplaced) {
  Fp8History history;
  history.add({3, 4}, 2);
  history.add({std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}, 2);
  EXPECT_EQ(history.steps.back(), (std::vector<float>{3, 4}));
}

TEST(Fp8, SlotsHaveNames) {
  EXPECT_EQ(fp8_slot_name(fp8_slot(3, LayerGemm::qkv, Fp8Operand::input)), "layers.3.attention.qkv.input");
  EXPECT_EQ(fp8_slot_name(fp8_slot(0, LayerGemm::down, Fp8Operand::gradient)), "layers.0.mlp.down.gradient");
  for (int slot = 0; slot < 5 * kFp8SlotsOfLayer; ++slot) EXPECT_EQ(fp8_slot_of(fp8_slot_name(slot)), slot);
  for (const char* name : {"", "layers.", "layers.x.mlp.up.input", "layers.1.mlp.up",
                           "layers.-1.mlp.up.input", "layers.1.mlp.up.input.", "layers.01.mlp.up.input"})
    EXPECT_EQ(fp8_slot_of(name), -1) << name;
}

Plan plan_of_layers(int layers, Precision precision) {
  return uniform_plan(small_model(layers, false),
                      {.microbatch = 1, .batch = 2, .sequence_length = 8, .precision = precision});
}

TEST(Fp8, SelectsLayers) {
  Plan plan = plan_of_layers(5, Precision::fp8);
  EXPECT_EQ(fp8_blocks(plan), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(fp8_text(plan), "blocks 2..4, window 16");
  plan.fp8 = {.blocks = {1, 2, 5}, .window = 3};
  EXPECT_EQ(fp8_text(plan), "blocks 1..2,5, window 3");
  EXPECT_FALSE(has_fp8(plan_of_layers(2, Precision::fp8)));
  EXPECT_FALSE(has_fp8(plan_of_layers(5, Precision::bf16)));
}

TEST(Fp8, RoundTripsInPlanFile) {
  Plan plan = plan_of_layers(5, Precision::bf16);
  EXPECT_EQ(plan_text(plan).find("fp8"), std::string::npos);
  plan.fp8 = {.blocks = {1, 2, 5}, .window = 3};
  EXPECT_EQ(to_json(plan)["fp8"].dump(), R"({"blocks":"1..2,5","window":3})");
  EXPECT_EQ(parse_plan(plan_text(plan), "x"), plan);
  EXPECT_NE(picture(plan).find("fp8 GEMMs: blocks 1..2,5, window 3"), std::string::npos);
  EXPECT_EQ(difference(plan, plan_of_layers(5, Precision::bf16)),
            std::vector<std::string>{"fp8: 1..2,5, window 3 → default layers, window 16"});
  plan.fp8.scaling = Fp8Scaling::current;
  EXPECT_EQ(to_json(plan)["fp8"].dump(), R"({"blocks":"1..2,5","window":3,"scales":"current"})");
  EXPECT_EQ(parse_plan(plan_text(plan), "x"), plan);
  EXPECT_EQ(fp8_text(plan), "blocks 1..2,5, window 3, current scaling");
  std::string wrong = plan_text(plan);
  wrong.replace(wrong.find("current"), 7, "row");
  EXPECT_THROW(parse_plan(wrong, "x"), UserError);
}

TEST(Fp8, RefusesInvalidSettings) {
  const auto problem = [](const Fp8Plan& fp8, Precision precision = Precision::bf16,
                          Schedule schedule = Schedule::one_f_one_b) {
    Plan plan = plan_of_layers(5, precision);
    plan.fp8 = fp8, plan.schedule = schedule;
    return find_problem(plan).value_or("");
  };
  EXPECT_EQ(problem({.blocks = {1, 5}}), "");
  EXPECT_EQ(problem({.blocks = {0}}), "fp8: block 0 is not a layer; layers are blocks 1 to 5");
  EXPECT_EQ(problem({.blocks = {6}}), "fp8: block 6 is not a layer; layers are blocks 1 to 5");
  EXPECT_EQ(problem({.blocks = {2, 2}}),
            "fp8: block 2 follows block 2; list each block once, in ascending order");
  EXPECT_EQ(problem({.blocks = {2}, .window = 0}), "fp8 window: expected 1 to 1024 steps, got 0");
  EXPECT_EQ(problem({.blocks = {2}}, Precision::fp16),
            "fp8: fp16 needs loss scaling; use precision fp8, bf16, fp32 or fp64");
  EXPECT_EQ(
      problem({}, Precision::fp8, Schedule::pipedream),
      "schedule pipedream has no common step for exchanging fp8 amax values; use a precision other than fp8");
}

}  // namespace
}  // namespace optimus
