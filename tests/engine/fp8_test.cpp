// The reference implementation of fp8 GEMMs: rounding of all kinds of numbers, the history of maxima, and
// equality of plans with one device. In fp64 only the order of sums differs between plans. Rounding to fp8
// turns such a difference (1e-15 of a number) into a step of up to 1/8 of it only if the number is that close
// to the middle between two fp8 numbers: with about 1e6 numbers per test, once in 1e8 tests. So the tolerance
// is that of any plan, 1e-9.
#include "engine/fp8_gemm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <limits>

#include "engine/fp8_training.h"

namespace optimus {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

at::Tensor power(int exponent) { return at::tensor({std::ldexp(1.0f, exponent)}).select(0, 0); }

double rounded(double value, Fp8Operand operand, int exponent = 0, at::ScalarType type = at::kFloat) {
  const at::Tensor tensor = at::tensor({value}, at::kDouble).to(type);
  return rounded_to_fp8(tensor, operand, power(exponent), power(-exponent)).to(at::kDouble).item<double>();
}

// All non-negative finite numbers of a format, from its definition: sign, exponent bits, fraction bits.
std::vector<double> numbers_of(Fp8Operand operand) {
  const bool is_gradient = operand == Fp8Operand::gradient;
  const int fraction_bits = is_gradient ? 2 : 3, bias = is_gradient ? 15 : 7;
  std::vector<double> all;
  for (int bits = 0; bits < 128; ++bits) {
    const int exponent = bits >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    if (is_gradient ? exponent == 31 : bits == 127) continue;  // e5m2: infinity and NaN; e4m3: NaN
    all.push_back(exponent == 0
                      ? std::ldexp(fraction, 1 - bias - fraction_bits)
                      : std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits));
  }
  return all;
}

TEST(Fp8Rounding, RoundsToNearestEven) {
  for (const Fp8Operand operand : {Fp8Operand::input, Fp8Operand::gradient}) {
    const std::vector<double> numbers = numbers_of(operand);
    EXPECT_EQ(numbers.back(), operand == Fp8Operand::gradient ? 57344 : 448);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      for (const double sign : {1.0, -1.0}) EXPECT_EQ(rounded(sign * numbers[i], operand), sign * numbers[i]);
      if (i + 1 == numbers.size()) continue;
      const double low = numbers[i], high = numbers[i + 1], middle = (low + high) / 2;
      EXPECT_EQ(rounded(middle, operand), i % 2 == 0 ? low : high) << middle;
      EXPECT_EQ(rounded(middle - (high - low) / 1024, operand), low) << middle;
      EXPECT_EQ(rounded(middle + (high - low) / 1024, operand), high) << middle;
    }
  }
}

TEST(Fp8Rounding, ScalingIsLossless) {
  for (const int exponent : {-100, -20, -1, 0, 7, 100})
    for (const double number : numbers_of(Fp8Operand::input))
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
        const double value = std::ldexp(number, -exponent);
        EXPECT_EQ(rounded(value, Fp8Operand::input, exponent, type), value) << number << " " << exponent;
      }
}

TEST(Fp8Rounding, HandlesOverflowUnderflowAndNan) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(rounded(449, Fp8Operand::input, 0, type), 448);
    EXPECT_EQ(rounded(-1e30, Fp8Operand::input, 0, type), -448);
    EXPECT_EQ(rounded(1e30, Fp8Operand::gradient, 126, type), std::ldexp(57344, -126))
        << "the scaled number overflows";
    EXPECT_EQ(rounded(1e9, Fp8Operand::gradient, 0, type), 57344);
    EXPECT_EQ(rounded(0, Fp8Operand::input, 40, type), 0);
    EXPECT_EQ(rounded(1e-30, Fp8Operand::input, 0, type), 0);
    EXPECT_EQ(rounded(0x1p-140, Fp8Operand::input, 126, type), 0) << "a denormal number that is too small";
    EXPECT_EQ(rounded(0x1p-130, Fp8Operand::input, 126, type), 0x1p-130)
        << "a denormal number that is large enough";
    for (const float wrong : {kInfinity, -kInfinity, kNan})
      EXPECT_TRUE(std::isnan(rounded(wrong, Fp8Operand::gradient, 0, type))) << wrong;
  }
}

void expect_fp8_equal_to_one_device(const ModelSpec& model, UniformPlan shape) {
  shape.sequence_length = kLength, shape.precision = Precision::fp64;
  expect_fp8_equal_to_one_device(model, in_fp8(uniform_plan(model, shape)));
}

TEST(Fp8, TensorParallelEqualsOneDevice) {
  for (const char* preset : {"gpt2", "llama3-8b", "bert-base"})
    for (const bool is_sequence_parallel : {false, true}) {
      UniformPlan shape{.microbatch = 3, .batch = 5};
      shape.strategy.tp = 3, shape.strategy.sequence_parallel = is_sequence_parallel;
      SCOPED_TRACE(preset);
      expect_fp8_equal_to_one_device(model_of(preset, 6, 3), shape);
    }
}

TEST(Fp8, RejectsSharedKeyHeads) {
  UniformPlan shape{.microbatch = 1, .batch = 4, .sequence_length = kLength, .precision = Precision::fp64};
  shape.strategy.tp = 3;
  const ModelSpec model = model_of("llama3-8b", 6, 2);
  const Plan plan = uniform_plan(model, shape);
  EXPECT_EQ(unsupported_reason(plan, model), std::nullopt);
  EXPECT_EQ(
      unsupported_reason(in_fp8(plan), model),
      "block 1: with tp 3, devices share some of the 2 key/value heads, which fp8 does not support; use "
      "a tp that divides the number of key/value heads");
  EXPECT_THROW(ensure_engine_supports(in_fp8(plan), model), UserError);
}

TEST(Fp8, PipelinesEqualOneDevice) {
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::interleaved, Schedule::zero_bubble}) {
    UniformPlan shape{.pp = 2, .microbatch = 1, .batch = 5};
    shape.schedule = schedule;
    if (schedule == Schedule::interleaved) shape.chunks = 2;
    expect_fp8_equal_to_one_device(model_of("llama3-8b", 4, 2, 4), shape);
  }
}

TEST(Fp8, DataContextAndZeroEqualOneDevice) {
  for (const int zero : {0, 1, 3}) {
    UniformPlan shape{.dp = 2, .microbatch = 1, .batch = 5};
    shape.strategy.zero = zero, shape.strategy.cp = 2;
    shape.strategy.recompute = zero == 0   ? RecomputeMode::none
                               : zero == 1 ? RecomputeMode::selective
                                           : RecomputeMode::full;
    expect_fp8_equal_to_one_device(model_of("gpt2", 4, 2), shape);
  }
}

// For every maximum, the scale computed on the device equals the one of plan/fp8.h.
TEST(Fp8, CurrentScaleMatchesMaximum) {
  std::vector<float> maxima = {0, 0x1p-149f, 0x1p-127f, 448, 448.5f, 57344, 57345, 3e38f};
  for (int exponent = -140; exponent < 127; exponent += 3)
    for (const float fraction : {1.0f, 1.75f, 1.7500001f, 1.9f})
      maxima.push_back(std::ldexp(fraction, exponent));
  for (const Fp8Operand operand : {Fp8Operand::input, Fp8Operand::gradient})
    for (const float maximum : maxima) {
      const Fp8Scale scale = fp8_scale_for(operand, at::tensor({maximum}).to(test_device()).select(0, 0));
      const int exponent = fp8_exponent(operand, maximum);
      EXPECT_EQ(scale.scale.item<float>(), std::ldexp(1.0f, exponent)) << maximum;
      EXPECT_EQ(scale.inverse.item<float>(), std::ldexp(1.0f, -exponent)) << maximum;
    }
}

// Current scales depend on the micro-batch, so plans give equal results if they cut the batch equally.
TEST(Fp8, CurrentScalingMatchesOneDevice) {
  const ModelSpec model = model_of("llama3-8b", 4, 2, 4);
  const UniformPlan alone{
      .microbatch = 1, .batch = 6, .sequence_length = kLength, .precision = Precision::fp64};
  const auto current = [&](const UniformPlan& shape) {
    Plan plan = in_fp8(uniform_plan(model, shape));
    plan.fp8.scaling = Fp8Scaling::current;
    return plan;
  };
  const TrainingResult expected = train(model, current(alone), 4);
  EXPECT_NE(expected.losses, train(model, in_fp8(uniform_plan(model, alone)), 4).losses)
      << "current scales must round differently";
  for (const int zero : {0, 2, 3}) {
    UniformPlan shape = alone;
    shape.dp = 2, shape.pp = 2, shape.strategy.zero = zero;
    shape.schedule = zero == 0 ? Schedule::zero_bubble : Schedule::one_f_one_b;
    shape.strategy.recompute = zero == 3 ? RecomputeMode::full : RecomputeMode::none;
    SCOPED_TRACE(zero);
    expect_equal(model, current(shape), expected, train(model, current(shape), 4));
  }
  UniformPlan wide = alone;
  wide.strategy.tp = 2;
  EXPECT_EQ(find_problem(current(wide), model),
            "fp8: block 1 has tp 2 and cp 1, but current scaling requires tensors that are not split; use "
            "\"scales\": "
            "\"window\", or tp 1 and cp 1");
}

// A tensor with a new maximum is not clipped, and the next tensor has its own scale again.
TEST(Fp8, CurrentScalingHandlesSpike) {
  Plan plan = uniform_plan(model_of("llama3-8b", 4, 2, 4), {.batch = 4, .precision = Precision::fp8});
  plan.fp8.scaling = Fp8Scaling::current;
  Fp8Scales scales(plan, test_device());
  const auto of = [&](Fp8Operand operand, double largest) {
    const at::Tensor tensor = at::tensor({largest / 2, -largest}, at::kFloat).to(test_device());
    return scales.scale_for(fp8_slot(1, LayerGemm::up, operand), tensor).scale.item<double>();
  };
  scales.begin_step(true);
  EXPECT_EQ(of(Fp8Operand::input, 1), 256);
  EXPECT_EQ(of(Fp8Operand::input, 1000), 0.25);
  EXPECT_EQ(of(Fp8Operand::input, 1), 256);
  EXPECT_EQ(of(Fp8Operand::weight, 1000), 1) << "weights use the history, which is empty";
}

// Training of some steps on one device, with access to the engine.
struct OneDeviceTraining {
  ModelSpec model = model_of("llama3-8b", 4, 2, 4);
  Plan plan = uniform_plan(
      model, {.microbatch = 2, .batch = 4, .sequence_length = kLength, .precision = Precision::fp8});
  Parameters parameters{plan, model, 0, test_device()};
  Engine engine{plan, model, parameters, {.device = test_device(), .seed = 9}};
  OneDeviceTraining() { parameters.initialize(5); }
  StepReport step(int number) {
    const Batch batch = make_batch(make_samples(4 * number, 4, model.vocab), plan, number, 4 * number, 0);
    return value_or_throw(engine.train_step(batch, {.learning_rate = 1e-3}));
  }
};

TEST(Fp8, FirstStepIsMeasuredAndLaterStepsAreRounded) {
  const ModelSpec model = model_of("gpt2", 4, 2);
  const TrainingResult wide = train(model, one_device(model, 4), 6),
                       narrow = train(model, in_fp8(one_device(model, 4)), 6);
  EXPECT_EQ(wide.losses[0], narrow.losses[0]);
  EXPECT_EQ(wide.norms[0], narrow.norms[0]);
  for (std::size_t step = 1; step < 6; ++step) {
    EXPECT_NE(wide.losses[step], narrow.losses[step]);
    EXPECT_NEAR(wide.losses[step], narrow.losses[step], 0.02 * wide.losses[step]);  // 3 fraction bits
  }
}

// Whole tiles, so that GEMMs on a GPU use cuBLASLt, with weight gradients immediately after input gradients
// or later.
TEST(Fp8, MatchesBf16TrainingWithWholeTiles) {
  for (const char* preset : {"gpt2", "llama3-8b"})
    for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::zero_bubble}) {
      SCOPED_TRACE(fmt::format("{} {}", preset, text(schedule)));
      ModelSpec model = with_overrides(open_model(preset), {.layers = 3,
                                                            .hidden = 64,
                                                            .heads = 4,
                                                            .kv_heads = 4,
                                                            .head_dim = 16,
                                                            .ffn = 128,
                                                            .vocab = 64,
                                                            .max_positions = 16});
      model.embedding_dropout = model.hidden_dropout = model.attention_dropout = 0;
      const Plan plan = uniform_plan(
          model, {.microbatch = 4, .batch = 8, .sequence_length = kLength, .schedule = schedule});
      const TrainingResult wide = train(model, plan, 10);
      EXPECT_LT(wide.losses.back(), 0.95 * wide.losses.front()) << "the loss did not decrease";
      for (const Fp8Scaling scaling : {Fp8Scaling::window, Fp8Scaling::current}) {
        Plan in_8_bits = in_fp8(plan);
        in_8_bits.fp8.scaling = scaling;
        const TrainingResult narrow = train(model, in_8_bits, 10);
        for (std::size_t step = 0; step < wide.losses.size(); ++step) {
          EXPECT_NEAR(wide.losses[step], narrow.losses[step], 0.02 * wide.losses[step]) << step;
          EXPECT_NEAR(wide.norms[step], narrow.norms[step], 0.15 * wide.norms[step]) << step;
        }
      }
    }
}

TEST(Fp8, HistoryHasMaximaOfWholeTensors) {
  OneDeviceTraining alone;
  EXPECT_TRUE(alone.engine.fp8_history().is_empty());
  alone.step(0);
  const Fp8History history = alone.engine.fp8_history();
  ASSERT_EQ(history.steps.size(), 1u);
  // With precision fp8 the first and the last layer use bf16, so they are not measured.
  for (int layer = 0; layer < 4; ++layer)
    for (int slot = layer * kFp8SlotsOfLayer; slot < (layer + 1) * kFp8SlotsOfLayer; ++slot)
      EXPECT_EQ(history.maximum(slot) > 0, layer == 1 || layer == 2) << fp8_slot_name(slot);
  // Weights are measured before the update: as initialized.
  OneDeviceTraining fresh;
  const double largest =
      fresh.parameters.weight("layers.1.mlp.down.weight").abs().max().to(at::kDouble).item<double>();
  EXPECT_EQ(history.maximum(fp8_slot(1, LayerGemm::down, Fp8Operand::weight)), static_cast<float>(largest));
}

TEST(Fp8, EvaluationDoesNotMeasure) {
  OneDeviceTraining alone;
  alone.step(0);
  const Fp8History before = alone.engine.fp8_history();
  const Batch batch = make_batch(make_samples(100, 4, alone.model.vocab), alone.plan, 0, 100, 0);
  value_or_throw(alone.engine.evaluate(batch));
  EXPECT_EQ(alone.engine.fp8_history(), before);
}

TEST(Fp8, NonFiniteStepAddsNoMaxima) {
  OneDeviceTraining alone;
  alone.step(0);
  const Fp8History before = alone.engine.fp8_history();
  for (const float wrong : {kNan, kInfinity}) {
    at::Tensor weight = alone.parameters.weight("layers.1.mlp.up.weight");
    const at::Tensor kept = weight.clone();
    weight[0][0].fill_(wrong);
    EXPECT_TRUE(alone.step(1).is_skipped) << wrong;
    EXPECT_EQ(alone.engine.fp8_history(), before);
    weight.copy_(kept);
  }
  EXPECT_FALSE(alone.step(1).is_skipped);
  EXPECT_EQ(alone.engine.fp8_history().steps.size(), 2u);
}

// A tensor that is a thousand times larger for one step is clipped to the range of the previous scale. The
// following steps use its scale, and after the window it has no effect.
TEST(Fp8, SpikeLeavesHistoryAfterWindow) {
  Plan plan = OneDeviceTraining().plan;
  plan.fp8.window = 3;
  Fp8Scales scales(plan, test_device());
  const int slot = fp8_slot(1, LayerGemm::up, Fp8Operand::input);
  const auto step = [&](double largest) {
    scales.begin_step(true);
    const double scale = scales.scale(slot).item<double>();
    scales.measure(slot, at::tensor({largest / 2, -largest}, at::kFloat).to(test_device()));
    scales.end_step(/*is_skipped=*/false);
    return scale;
  };
  EXPECT_EQ(step(1), 1);  // the history is empty
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step(1), 256);
  EXPECT_EQ(step(1000), 256);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(1), 0.25);
  EXPECT_EQ(step(1), 256);
}

TEST(Fp8, RejectsHistoryOfAnotherModel) {
  OneDeviceTraining alone;
  EXPECT_THROW(alone.engine.set_fp8_history({{{1.0f, 2.0f}}}), UserError);
}

}  // namespace
}  // namespace optimus
