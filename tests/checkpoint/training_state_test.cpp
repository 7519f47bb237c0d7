// state.json: exact round trips, and errors for invalid files.
#include "checkpoint/training_state.h"

#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "layout/property.h"

namespace optimus {
namespace {

std::string state_error(const std::string& from, const std::string& to) {
  std::string content = training_state_text({.step = 5, .num_updates = 4});
  const auto at = content.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  content.replace(at, from.size(), to);
  return message_of([&] { parse_training_state(content, "state.json"); });
}

TEST(TrainingStateProperty, ReadsBackExactly) {
  EXPECT_TRUE(holds("state", 100, [] {
    const auto count = [] { return *rc::gen::inRange<std::int64_t>(0, INT64_MAX); };
    TrainingState state{count(), count(), count(), *rc::gen::arbitrary<std::int64_t>(), count()};
    state.precision =
        *rc::gen::element(Precision::fp64, Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8);
    state.loss_scale = {std::ldexp(1 + *rc::gen::inRange(0, 1 << 30) * 0x1p-30, *rc::gen::inRange(-300, 300)),
                        count()};
    const auto num_layers = *rc::gen::inRange<std::size_t>(1, 3);
    for (int step = *rc::gen::inRange(0, 4); step > 0; --step) {
      std::vector<float>& maxima = state.fp8.steps.emplace_back(num_layers * kFp8SlotsOfLayer);
      for (float& maximum : maxima)
        if (*rc::gen::arbitrary<bool>())
          maximum = std::ldexp(1 + static_cast<float>(*rc::gen::inRange(0, 1 << 23)) * 0x1p-23f,
                               *rc::gen::inRange(-140, 127));
    }
    if (*rc::gen::arbitrary<bool>()) {
      const auto number = [&] {
        return std::ldexp(*rc::gen::inRange(-1000, 1000), *rc::gen::inRange(-300, 300));
      };
      state.noise = {number(), number(), number(), count()};
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i)
        state.phase_begins.push_back((state.phase_begins.empty() ? 1 : state.phase_begins.back() + 1) +
                                     *rc::gen::inRange(0, 1000));
    }
    RC_ASSERT(parse_training_state(training_state_text(state), "s") == state);
  }));
}

TEST(TrainingState, RejectsInvalidValues) {
  EXPECT_EQ(state_error("\"version\": 1", "\"version\": 3"),
            "state.json: training state version 3 is not supported; this program reads version 1");
  EXPECT_EQ(state_error("optimus-training-state", "x"),
            "state.json: expected format optimus-training-state, got 'x'");
  EXPECT_EQ(state_error("\"step\": 5", "\"step\": -1"),
            "state.json: step: expected an integer of at least 0, got '-1'");
  EXPECT_EQ(state_error("\"step\": 5", "\"stepp\": 5"),
            "state.json: unknown key 'stepp'; did you mean 'step'?");
  EXPECT_EQ(state_error("256.0", "0"), "state.json: loss_scale.value: expected a positive number, got '0'");
  EXPECT_NE(state_error("256.0", "null"), "");
  EXPECT_NE(state_error("256.0", "1e999"), "");
  EXPECT_NE(state_error("fp32", "fp31"), "");
  EXPECT_NE(state_error("{", "["), "");
}

TEST(TrainingState, RejectsInvalidRamps) {
  const auto error_of = [](const std::string& ramp) {
    std::string content = training_state_text({});
    content.replace(content.rfind('}'), 1, ", \"ramp\": " + ramp + "}");
    return message_of([&] { parse_training_state(content, "state.json"); });
  };
  const auto ramp = [](const std::string& gradient, const std::string& begins) {
    return R"({"gradient": )" + gradient + R"(, "noise": 1, "moment": 0.5, "steps": 3, "begins": )" + begins +
           "}";
  };
  EXPECT_EQ(error_of(ramp("-1.5", "[24, 60]")), "");
  EXPECT_EQ(error_of(ramp("1", "[24, 24]")),
            "state.json: ramp.begins[1]: expected an integer of at least 25, got '24'");
  EXPECT_NE(error_of(ramp("1", "[0]")), "");
  EXPECT_NE(error_of(ramp("1", "7")), "");
  EXPECT_NE(error_of(ramp("\"x\"", "[]")), "");
  EXPECT_NE(error_of(ramp("1e999", "[]")), "");
  EXPECT_NE(error_of(R"({"gradient": 1})"), "");
}

TEST(TrainingState, RejectsInvalidMaxima) {
  const auto error_of = [](const std::string& history) {
    std::string content = training_state_text({});
    content.replace(content.rfind('}'), 1, ", \"fp8\": " + history + "}");
    return message_of([&] { parse_training_state(content, "state.json"); });
  };
  const auto row = [](const std::string& name, const std::string& values) {
    return R"({"layers": 2, "steps": 2, "maxima": {")" + name + R"(": )" + values + "}}";
  };
  EXPECT_EQ(error_of(row("layers.1.mlp.up.weight", "[1, 0.5]")), "");
  EXPECT_EQ(error_of(row("layers.2.mlp.up.weight", "[1, 0.5]")),
            "state.json: fp8: 'layers.2.mlp.up.weight' is not an operand of an fp8 GEMM in "
            "a model with 2 layers");
  EXPECT_NE(error_of(row("layers.1.mlp.up.bias", "[1, 0.5]")), "");
  EXPECT_NE(error_of(row("layers.99999999999.mlp.up.weight", "[1, 0.5]")), "");
  EXPECT_NE(error_of(row("layers.1.mlp.up.weight", "[1]")), "");
  EXPECT_NE(error_of(row("layers.1.mlp.up.weight", "[1, -1]")), "");
  EXPECT_NE(error_of(row("layers.1.mlp.up.weight", "[1, 1e300]")), "");
  EXPECT_NE(error_of(R"({"layers": 100000, "steps": 1024, "maxima": {}})"), "")
      << "a file of a line takes 5 GB";
}

}  // namespace
}  // namespace optimus
