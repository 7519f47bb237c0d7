// Asynchronous schedules train like one device that simulates their delays: PipeDream's gradients are those
// of the weights that each stage's forward used; PipeMare's are those of a forward with old weights and a
// backward with newer, corrected weights. Each gradient is applied to the newest weights. In fp64, so that
// only the order of sums differs: weights agree within 1e-9 of their tensor's norm.
//
// Also tests the benefit of PipeMare: with large steps it learns a text better than training with plain
// delay.
#include <fstream>
#include <iterator>

#include "engine/delayed_reference.h"

namespace optimus {
namespace {

constexpr int kSteps = 3;
constexpr UpdateOptions kUpdate{.learning_rate = 1e-2, .clip = 0, .pipemare = {.decay = 0}};

bool is_long() { return std::getenv("OPTIMUS_LONG") != nullptr; }

ModelSpec small_model(const std::string& preset, int layers, double dropout, bool is_tied = false) {
  ModelOverrides overrides{.layers = layers,
                           .hidden = 16,
                           .heads = 4,
                           .head_dim = 4,
                           .ffn = 22,
                           .vocab = 53,
                           .max_positions = 16,
                           .is_tied = is_tied};
  if (preset.starts_with("llama")) overrides.kv_heads = 2;
  ModelSpec model = with_overrides(open_model(preset), overrides);
  model.embedding_dropout = model.hidden_dropout = model.attention_dropout = dropout;
  return model;
}

Values initial(const ModelSpec& model) {
  const Plan plan = uniform_plan(model, {.sequence_length = kLength, .precision = Precision::fp64});
  Parameters parameters(plan, model, 0, test_device());
  parameters.initialize(TrainingSetup{}.seed);
  Values values;
  for (const LogicalTensor& tensor : parameters.tensors())
    values[tensor.name] = parameters.get(tensor.name, &BlockState::masters);
  return values;
}

Plan plan_of(const ModelSpec& model, UniformPlan shape, Schedule schedule) {
  shape.sequence_length = kLength, shape.precision = Precision::fp64, shape.schedule = schedule;
  return uniform_plan(model, shape);
}

void expect_as_reference(const ModelSpec& model, const Plan& plan, const UpdateOptions& update,
                         bool is_padded, const Differentiate& differentiate) {
  ASSERT_EQ(find_problem(plan, model), std::nullopt);
  const TrainingSetup setup{[&](std::int64_t first, std::int64_t count) {
                              return make_samples(first, count, model.vocab, {is_padded, true});
                            },
                            update, kSteps};
  Reference reference(model, plan, update, differentiate);
  expect_same_learning(model, plan, reference.train(initial(model), setup), train(model, plan, setup));
}

void expect_pipedream_as_reference(const ModelSpec& model, const UniformPlan& shape) {
  OneDevice one(model);
  expect_as_reference(
      model, plan_of(model, shape, Schedule::pipedream), kUpdate, true,
      [&](const Values& forward, const Values&, const std::vector<Sample>& samples, std::int64_t step,
          std::int64_t first) { return one(forward, samples, step, first); });
}

TEST(Asynchronous, PipeDreamMatchesDelayedGradients) {
  for (const char* preset : {"gpt2", "llama3-8b"})
    for (const int pp : {2, 3, 4})
      for (const int tp : {1, 2})
        for (const int dp : {1, 2}) {
          const bool is_selected = (tp == dp) == (preset == std::string("gpt2"));
          if (pp * tp * dp > 8 || !(is_selected || is_long())) continue;
          UniformPlan shape{.pp = pp, .dp = dp, .microbatch = 1, .batch = 7};
          shape.strategy.tp = tp, shape.strategy.zero = dp - 1;
          shape.strategy.sequence_parallel = tp == 2 && pp == 3;
          if (pp == 2) shape.strategy.recompute = dp == 1 ? RecomputeMode::full : RecomputeMode::selective;
          expect_pipedream_as_reference(small_model(preset, 4, 0.1), shape);
        }
}

// More stages than micro-batches, and one stage, whose embedding may be tied.
TEST(Asynchronous, PipeDreamWithFewMicrobatchesOrOneStage) {
  expect_pipedream_as_reference(small_model("gpt2", 4, 0.1), {.pp = 5, .microbatch = 3, .batch = 8});
  expect_pipedream_as_reference(small_model("gpt2", 2, 0.1, true), {.dp = 2, .microbatch = 1, .batch = 6});
}

TEST(Asynchronous, PipeDreamWithContextParallelism) {
  UniformPlan shape{.pp = 3, .microbatch = 1, .batch = 5};
  shape.strategy.cp = 2, shape.strategy.zero = 1;
  expect_pipedream_as_reference(small_model("llama3-8b", 3, 0.1), shape);
}

TEST(Asynchronous, PipeMareMatchesOldForwardAndCorrectedBackward) {
  const PipeMareOptions settings[] = {{.decay = 0}, {.decay = 0.2, .num_warmup_updates = 8}};
  for (const PipeMareOptions& options : settings)
    for (const int pp : {2, 3, 4})
      for (const int dp : {1, 2}) {
        const ModelSpec model = small_model("gpt2", 4, 0);
        UniformPlan shape{.pp = pp, .dp = dp, .microbatch = 1, .batch = 7};
        shape.strategy.tp = pp == 3 ? 2 : 1, shape.strategy.zero = dp - 1;
        const bool is_selected = (dp == 1) == (options.decay == 0 || pp == 3);
        if (pp * dp * shape.strategy.tp > 8 || !(is_selected || is_long())) continue;
        UpdateOptions update = kUpdate;
        update.pipemare = options;
        expect_as_reference(model, plan_of(model, shape, Schedule::pipemare), update, false,
                            [&](const Values& forward, const Values& backward,
                                const std::vector<Sample>& samples, std::int64_t, std::int64_t) {
                              return TwoWeights(model, forward, backward).gradient(samples);
                            });
      }
}

// The two references agree where they are comparable.
TEST(Asynchronous, AutogradAgreesWithOneDevice) {
  const ModelSpec model = small_model("gpt2", 2, 0);
  const Values weights = initial(model);
  const std::vector<Sample> samples =
      make_samples(0, 3, model.vocab, {.is_padded = false, .has_uncounted = true});
  const Gradient one = OneDevice(model)(weights, samples, 0, 0),
                 two = TwoWeights(model, weights, weights).gradient(samples);
  EXPECT_NEAR(one.loss_sum, two.loss_sum, 1e-12 * one.loss_sum);
  EXPECT_EQ(one.num_targets, two.num_targets);
  for (const auto& [name, sums] : one.sums) {
    if (name.find("attention.k.bias") != std::string::npos) continue;  // rounding noise
    EXPECT_LT(distance(sums, two.sums.at(name)), 1e-10) << name;
  }
}

TEST(Asynchronous, RejectsClipping) {
  const ModelSpec model = small_model("gpt2", 2, 0);
  const Plan plan = plan_of(model, {}, Schedule::pipedream);
  Parameters parameters(plan, model, 0, test_device());
  Engine engine(plan, model, parameters, {.device = test_device()});
  const Batch batch = make_batch(make_samples(0, 1, model.vocab, {.is_padded = false}), plan, 0, 0);
  try {
    (void)engine.train_step(batch, {.learning_rate = 1e-2, .clip = 1});
    FAIL() << "clipping was accepted";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "clip 1: schedule pipedream updates stages at different times and has no global gradient "
                 "norm; use --clip 0");
  }
}

// Bytes of a real text: this project's README.
std::vector<Sample> text_samples(const std::string& text, std::int64_t first, std::int64_t count,
                                 std::int64_t length, std::uint64_t seed) {
  std::vector<Sample> result;
  for (std::int64_t s = first; s < first + count; ++s) {
    const std::uint64_t at = random_below(RandomKey(seed).derive("text"), static_cast<std::uint64_t>(s),
                                          text.size() - static_cast<std::size_t>(length) - 1);
    Sample& sample = result.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      sample.inputs.push_back(static_cast<unsigned char>(text[at + static_cast<std::size_t>(i)]));
      sample.targets.push_back(static_cast<unsigned char>(text[at + static_cast<std::size_t>(i) + 1]));
      sample.positions.push_back(static_cast<std::int32_t>(i));
    }
    sample.num_targets = length;
  }
  return result;
}

// The loss after training, evaluated on pieces of the text that were not used for training.
double evaluated_loss(const ModelSpec& model, const Plan& plan, const std::string& text, int seed,
                      const PipeMareOptions& options) {
  const TrainingSetup setup{
      .samples =
          [&](std::int64_t first, std::int64_t count) {
            return text_samples(text, first, count, plan.sequence_length, static_cast<std::uint64_t>(seed));
          },
      .update = {.learning_rate = 5e-3, .weight_decay = 0, .clip = 0, .pipemare = options},
      .steps = 12,
      .seed = seed};
  return train(model, plan, setup).evaluated / static_cast<double>(plan.batch * plan.sequence_length);
}

// 384 updates without warm-up, with a learning rate at which the first stages' delay of 3 updates is harmful.
// Results of single runs vary with the seed about as much as the two methods differ: for seeds 1 to 9
// PipeMare was worse once and equal once, and better by 0.13 on average, with a standard error of 0.04.
// Therefore the mean is tested, with a margin of three standard errors.
TEST(Asynchronous, PipeMareLearnsBetterThanPlainDelay) {
  std::ifstream file(OPTIMUS_SOURCE "/README.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ASSERT_GT(text.size(), 4000U);
  ModelSpec model = with_overrides(
      open_model("gpt2"),
      {.layers = 6, .hidden = 32, .heads = 4, .vocab = 256, .max_positions = 32, .is_tied = false});
  model.embedding_dropout = model.hidden_dropout = model.attention_dropout = 0;
  const Plan plan = uniform_plan(model, {.pp = 4,
                                         .microbatch = 4,
                                         .batch = 128,
                                         .sequence_length = 32,
                                         .schedule = Schedule::pipemare,
                                         .precision = Precision::fp32});
  const int num_seeds = is_long() ? 9 : 1;
  double gap = 0;
  for (int seed = 1; seed <= num_seeds; ++seed) {
    const double plain = evaluated_loss(model, plan, text, seed, {.decay = 0}),
                 corrected = evaluated_loss(model, plan, text, seed, {.num_warmup_updates = 384});
    std::printf("seed %d: loss %.3f with plain delay, %.3f with PipeMare\n", seed, plain, corrected);
    gap += (plain - corrected) / num_seeds;
    EXPECT_LT(corrected, 4) << "seed " << seed;  // the initial loss is 5.5
  }
  if (is_long()) {
    EXPECT_GT(gap, 0.01);
  }
}

}  // namespace
}  // namespace optimus
