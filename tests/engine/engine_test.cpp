// The engine as a whole, on the CPU or on the device of test_device.h: what must not change the training
// result, what is skipped, what is allocated. tests/parity/engine_parity.py compares training results with
// transformers.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include "engine/generate.h"
#include "engine/test_device.h"
#include "model/open.h"
#include "switching/memory.h"

namespace optimus {
namespace {

ModelSpec small(const std::string& preset) {
  ModelOverrides overrides{
      .layers = 3, .hidden = 48, .heads = 4, .head_dim = 12, .ffn = 80, .vocab = 61, .max_positions = 40};
  if (preset.starts_with("llama")) overrides.kv_heads = 2;
  ModelSpec model = with_overrides(open_model(preset), overrides);
  model.embedding_dropout = model.hidden_dropout = model.attention_dropout = 0;
  return model;
}

Plan plan_of(const ModelSpec& model, int microbatch, Precision precision = Precision::fp64,
             RecomputeMode recompute = RecomputeMode::none, int recompute_layers = 1) {
  UniformPlan shape{.microbatch = microbatch, .batch = 6, .sequence_length = 20, .precision = precision};
  shape.strategy.recompute = recompute, shape.strategy.recompute_layers = recompute_layers;
  return uniform_plan(model, shape);
}

// Sequences of different lengths, so that there is padding.
std::vector<Sample> samples(std::int64_t first, std::int64_t vocab) {
  std::vector<Sample> result;
  for (std::int64_t s = first; s < first + 6; ++s) {
    const std::int64_t length = s % 3 == 2 ? 13 : 20;
    Sample& sample = result.emplace_back();
    const RandomKey key = RandomKey(3).derive(static_cast<std::uint64_t>(s));
    for (std::int64_t i = 0; i < length; ++i) {
      sample.inputs.push_back(static_cast<TokenId>(
          random_below(key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocab))));
      sample.targets.push_back(i % 5 == 4 ? kNoTarget
                                          : (sample.inputs.back() * 7 + 1) % static_cast<TokenId>(vocab));
      sample.positions.push_back(static_cast<std::int32_t>(i));
      sample.num_targets += sample.targets.back() != kNoTarget;
    }
  }
  return result;
}

struct Curve {
  std::vector<double> losses, norms;
};

Curve train(const ModelSpec& model, const Plan& plan, int steps, double rate = 1e-2) {
  Parameters parameters(plan, model, 0, test_device());
  parameters.initialize(5);
  Engine engine(plan, model, parameters, {.device = test_device(), .seed = 9});
  engine.loss_scale.value = 1024;  // small enough that no step is skipped
  Curve curve;
  for (int step = 0; step < steps; ++step) {
    const StepReport report =
        engine
            .train_step(make_batch(samples(step * 6, model.vocab), plan, step, step * 6),
                        {.learning_rate = rate})
            .value();
    curve.losses.push_back(report.loss), curve.norms.push_back(report.grad_norm);
  }
  return curve;
}

// Results are bit-identical on a CPU. On a GPU some sums (of embedding gradients) have no fixed order: fp64
// rounding, as below.
double recompute_tolerance() { return test_device().is_cuda() ? 1e-9 : 0; }

void expect_same(const Curve& a, const Curve& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance * a.losses[i]) << "step " << i;
    EXPECT_NEAR(a.norms[i], b.norms[i], tolerance * a.norms[i]) << "step " << i;
  }
}

TEST(Engine, DropoutMasksDoNotDependOnMicrobatchesOrRecompute) {
  for (const char* preset : {"gpt2", "llama3-8b", "bert-base"}) {
    ModelSpec model = small(preset);
    const Curve without = train(model, plan_of(model, 6), 5);
    model.embedding_dropout = model.hidden_dropout = model.attention_dropout = 0.2;
    const Curve whole = train(model, plan_of(model, 6), 5);
    // Sums in a different order: fp64, five steps of AdamW at a high learning rate.
    expect_same(whole, train(model, plan_of(model, 1), 5), 1e-9);
    expect_same(whole, train(model, plan_of(model, 4), 5), 1e-9);
    expect_same(whole, train(model, plan_of(model, 6, Precision::fp64, RecomputeMode::selective), 5),
                recompute_tolerance());
    expect_same(whole, train(model, plan_of(model, 6, Precision::fp64, RecomputeMode::full), 5),
                recompute_tolerance());
    expect_same(whole, train(model, plan_of(model, 6, Precision::fp64, RecomputeMode::full, 2), 5),
                recompute_tolerance());
    EXPECT_GT(std::abs(whole.losses[0] - without.losses[0]), 1e-4) << preset;
  }
}

TEST(Engine, SixteenBitTypesMatchFp32) {
  const ModelSpec model = small("gpt2");
  constexpr double kRate = 1e-3;  // small, so that training does not amplify rounding errors
  const Curve wide = train(model, plan_of(model, 3, Precision::fp32), 20, kRate);
  EXPECT_LT(wide.losses.back(), wide.losses.front() - 0.1);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const Curve narrow = train(model, plan_of(model, 3, precision), 20, kRate);
    // bf16 rounds by 2^-9, and a loss of 4 depends on a residual stream that was rounded a dozen times: at
    // most 4 * 12 * 2^-9 = 0.09.
    for (std::size_t i = 0; i < wide.losses.size(); ++i)
      EXPECT_NEAR(narrow.losses[i], wide.losses[i], 0.09) << text(precision) << " step " << i;
  }
}

TEST(Engine, NonFiniteStepChangesNothing) {
  const ModelSpec model = small("gpt2");
  const Plan plan = plan_of(model, 6, Precision::fp16);
  Parameters parameters(plan, model, 0, test_device());
  parameters.initialize(5);
  Engine engine(plan, model, parameters, {.device = test_device()});
  engine.loss_scale.value = 0x1p40;  // fp16 gradients overflow
  const std::vector<double> before = parameters.get("layers.1.mlp.up.weight", &BlockState::masters);
  const Batch batch = make_batch(samples(0, model.vocab), plan, 0, 0);
  const StepReport skipped = engine.train_step(batch, {.learning_rate = 1e-2}).value();
  EXPECT_TRUE(skipped.is_skipped);
  EXPECT_EQ(engine.loss_scale.value, 0x1p39);
  EXPECT_EQ(engine.num_updates, 0);
  EXPECT_EQ(parameters.get("layers.1.mlp.up.weight", &BlockState::masters), before);
  engine.loss_scale.value = 1024;
  const StepReport taken = engine.train_step(batch, {.learning_rate = 1e-2}).value();
  EXPECT_FALSE(taken.is_skipped);
  EXPECT_EQ(taken.loss, skipped.loss);
  EXPECT_NE(parameters.get("layers.1.mlp.up.weight", &BlockState::masters), before);
}

TEST(Engine, LossScaleGrowsAfterGoodStepsAndHalvesAfterOverflow) {
  LossScale scale{.value = 65536};
  scale.update(false);
  EXPECT_EQ(scale.value, 32768);
  for (int i = 0; i < 1000; ++i) scale.update(true);
  EXPECT_EQ(scale.value, 65536);
  for (int i = 0; i < 40; ++i) scale.update(false);
  EXPECT_EQ(scale.value, 1);
}

// Measured: the allocator's peak during construction and three steps. Predicted: from the plan alone.
TEST(Engine, PredictedMemoryMatchesAllocation) {
  for (const char* preset : {"gpt2", "llama3-8b", "bert-base"})
    for (const auto& [mode, layers] :
         {std::pair(RecomputeMode::none, 1), std::pair(RecomputeMode::selective, 1),
          std::pair(RecomputeMode::full, 1), std::pair(RecomputeMode::full, 3)}) {
      // On a GPU the model is large enough that library workspaces (about 64 MiB) are a small part.
      const std::int64_t scale = test_device().is_cuda() ? 6 : 1;
      ModelSpec model = with_overrides(open_model(preset), {.layers = 4,
                                                            .hidden = 256 * scale,
                                                            .heads = 8 * scale,
                                                            .head_dim = 32,
                                                            .ffn = 1024 * scale,
                                                            .vocab = 2048});
      model.embedding_dropout = model.hidden_dropout = model.attention_dropout = 0;
      UniformPlan shape{.microbatch = 2, .batch = 4, .sequence_length = 128, .precision = Precision::fp32};
      shape.strategy.recompute = mode, shape.strategy.recompute_layers = layers;
      const Plan plan = uniform_plan(model, shape);
      const Bytes predicted = predicted_memory(plan, model, 0, test_device());
      const double tolerance = test_device().is_cuda() ? 0.05 : 0.02;  // relative to the specified accuracy
      MemoryWatch memory;
      {
        Parameters parameters(plan, model, 0, test_device());
        Engine engine(plan, model, parameters, {.device = test_device()});
        std::vector<Sample> data;
        for (std::int64_t s = 0; s < 4; ++s) {
          Sample& sample = data.emplace_back();
          for (std::int32_t i = 0; i < 128; ++i)
            sample.inputs.push_back(i), sample.targets.push_back(i + 1), sample.positions.push_back(i);
          sample.num_targets = 128;
        }
        const Batch batch = make_batch(data, plan, 0, 0);
        engine.train_step(batch, {.learning_rate = 1e-3}).value();
        memory.take_largest();
        engine.train_step(batch, {.learning_rate = 1e-3}).value();
        engine.train_step(batch, {.learning_rate = 1e-3}).value();
        // A later step allocates almost nothing: less than one activation of 256 tokens.
        EXPECT_LT(memory.take_largest(), 256 * 256 * 4) << preset << " " << text(mode);
      }
      EXPECT_NEAR(static_cast<double>(memory.peak()), static_cast<double>(predicted.value),
                  tolerance * static_cast<double>(predicted.value))
          << preset << " " << text(mode);
    }
}

TEST(Engine, GeneratesMostLikelyTokens) {
  const ModelSpec model = small("llama3-8b");
  const Plan plan = plan_of(model, 6);
  Parameters parameters(plan, model, 0, test_device());
  parameters.initialize(5);
  const std::vector<std::int64_t> prompt = {3, 1, 4, 1, 5};
  const std::vector<std::int64_t> ids =
      generate(model, Precision::fp64, parameters, test_device(), prompt, {.num_tokens = 12});
  ASSERT_EQ(ids.size(), 12u);
  // Without a cache: each token is the most likely one after all previous tokens.
  std::vector<std::int64_t> all = prompt;
  for (const std::int64_t id : ids) {
    const Plan whole = uniform_plan(
        model,
        {.microbatch = 1, .batch = 1, .sequence_length = std::ssize(all), .precision = Precision::fp64});
    Engine engine(whole, model, parameters, {.device = test_device()});
    Sample sample;
    for (const std::int64_t token : all) {
      sample.positions.push_back(static_cast<std::int32_t>(sample.inputs.size()));
      sample.inputs.push_back(static_cast<TokenId>(token)), sample.targets.push_back(0);
    }
    sample.num_targets = std::ssize(all);
    EXPECT_EQ(
        engine.logits(make_batch({sample}, whole, 0, 0))[std::ssize(all) - 1].argmax().item<std::int64_t>(),
        id);
    all.push_back(id);
  }
  EXPECT_THROW(
      generate(small("gpt2"), Precision::fp64, parameters, test_device(), prompt, {.num_tokens = 100}),
      UserError);
}

TEST(Engine, GenerationFollowsOptions) {
  const ModelSpec model = small("gpt2");  // 40 positions
  Parameters parameters(plan_of(model, 6), model, 0, test_device());
  parameters.initialize(5);
  const auto ask = [&](const GenerateOptions& options) {
    return generate(model, Precision::fp64, parameters, test_device(), {3, 1, 4}, options);
  };
  const std::vector<std::int64_t> greedy = ask({.num_tokens = 38});  // the last token needs no position
  EXPECT_EQ(greedy.size(), 38u);
  EXPECT_THROW(ask({.num_tokens = 39}), UserError);
  // The probability mass is so small that only the most likely token remains.
  EXPECT_EQ(ask({.num_tokens = 20, .temperature = 1, .seed = 4, .top_p = 1e-9}),
            std::vector(greedy.begin(), greedy.begin() + 20));
  EXPECT_EQ(ask({.num_tokens = 20, .temperature = 2, .seed = 4}),
            ask({.num_tokens = 20, .temperature = 2, .seed = 4}));
  EXPECT_NE(ask({.num_tokens = 20, .temperature = 2, .seed = 4}),
            ask({.num_tokens = 20, .temperature = 2, .seed = 5}));
  EXPECT_EQ(ask({.num_tokens = 20, .temperature = 2, .seed = 4, .top_p = 0.9999999}).size(), 20u);
  std::vector<std::int64_t> seen;
  const std::vector<std::int64_t> ended =
      ask({.num_tokens = 38, .end_tokens = {greedy[5], 60}, .on_token = [&](std::int64_t id) {
             seen.push_back(id);
           }});
  const auto first = std::find(greedy.begin(), greedy.end(), greedy[5]);
  EXPECT_EQ(ended, std::vector(greedy.begin(), first + 1));
  EXPECT_EQ(seen, ended);
}

TEST(Engine, ForwardNeedsOnlyWeights) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const ModelSpec model = small("llama3-8b");
    const Plan plan = plan_of(model, 6, precision);
    Parameters whole(plan, model, 0, test_device()),
        weights(plan, model, 0, test_device(), StorageMode::weights);
    whole.initialize(5), weights.initialize(5);
    EXPECT_LT(weights.bytes().value * 3, whole.bytes().value);
    const Batch batch = make_batch(samples(0, model.vocab), plan, 0, 0);
    const double loss =
        Engine(plan, model, whole, {.device = test_device()}).evaluate(batch).value().loss_sum;
    EXPECT_EQ(Engine(plan, model, weights, {.device = test_device()}).evaluate(batch).value().loss_sum, loss);
    const Plan lean = plan_of(model, 6, precision, RecomputeMode::full);
    Engine small_engine(lean, model, weights, {.device = test_device()});
    EXPECT_EQ(small_engine.evaluate(batch).value().loss_sum, loss);
    EXPECT_LT(small_engine.arena_bytes(),
              Engine(plan, model, whole, {.device = test_device()}).arena_bytes());
  }
}

TEST(Engine, SeparateDocumentsDoNotAttendToEachOther) {
  const ModelSpec model = small("llama3-8b");
  // Two documents in one sequence, with positions from 0 in each, compared with the same documents as
  // separate sequences.
  const auto sample = [&](std::int64_t from, std::int64_t to) {
    Sample result;
    for (std::int64_t i = from; i < to; ++i) {
      result.inputs.push_back(static_cast<TokenId>((i * 11) % 61)),
          result.targets.push_back(static_cast<TokenId>((i * 5) % 61));
      result.positions.push_back(static_cast<std::int32_t>(i < 9 ? i : i - 9));
    }
    result.num_targets = to - from;
    return result;
  };
  const auto loss = [&](const std::vector<Sample>& data) {
    const Plan plan = uniform_plan(model, {.microbatch = static_cast<int>(data.size()),
                                           .batch = std::ssize(data),
                                           .sequence_length = 20,
                                           .precision = Precision::fp64});
    Parameters parameters(plan, model, 0, test_device());
    parameters.initialize(5);
    Engine engine(plan, model, parameters, {.device = test_device()});
    return engine.train_step(make_batch(data, plan, 0, 0), {.learning_rate = 0}).value();
  };
  const StepReport joint = loss({sample(0, 20)}), apart = loss({sample(0, 9), sample(9, 20)});
  EXPECT_NEAR(joint.loss, apart.loss, 1e-12);
  EXPECT_NEAR(joint.grad_norm, apart.grad_norm, 1e-12);
}

}  // namespace
}  // namespace optimus
