// state.json: reads back exactly, refuses everything else.
#include "checkpoint/training_state.h"

#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "layout/property.h"

namespace optimus {
namespace {

std::string state_refusal(const std::string& from, const std::string& to) {
  std::string content = training_state_text({.step = 5, .num_updates = 4});
  const auto at = content.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  content.replace(at, from.size(), to);
  return message_of([&] { parse_training_state(content, "state.json"); });
}

TEST(TrainingStateProperty, ReadsBackExactly) {
  EXPECT_TRUE(holds("state", 100, [] {
    const auto count = [] { return *rc::gen::inRange<std::int64_t>(0, INT64_MAX); };
    TrainingState state{count(), count(), count(), *rc::gen::arbitrary<std::int64_t>(), count(), {}, {}};
    state.precision =
        *rc::gen::element(Precision::fp64, Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8);
    state.loss_scale = {std::ldexp(1 + *rc::gen::inRange(0, 1 << 30) * 0x1p-30, *rc::gen::inRange(-300, 300)),
                        count()};
    RC_ASSERT(parse_training_state(training_state_text(state), "s") == state);
  }));
}

TEST(TrainingState, RefusesWhatCannotBe) {
  EXPECT_EQ(state_refusal("\"version\": 1", "\"version\": 3"),
            "state.json: training state version 3; this program reads version 1");
  EXPECT_EQ(state_refusal("optimus-training-state", "x"),
            "state.json: format 'x' is not optimus-training-state");
  EXPECT_EQ(state_refusal("\"step\": 5", "\"step\": -1"),
            "state.json: step must be a whole number of at least 0, found '-1'");
  EXPECT_EQ(state_refusal("\"step\": 5", "\"stepp\": 5"),
            "state.json: unknown key 'stepp'; did you mean 'step'?");
  EXPECT_EQ(state_refusal("256.0", "0"), "state.json: loss_scale.value must be a positive number, found '0'");
  EXPECT_NE(state_refusal("256.0", "null"), "");
  EXPECT_NE(state_refusal("256.0", "1e999"), "");
  EXPECT_NE(state_refusal("fp32", "fp31"), "");
  EXPECT_NE(state_refusal("{", "["), "");
}

}  // namespace
}  // namespace optimus
