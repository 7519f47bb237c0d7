// The engine's gradient noise statistics: the products of gradients and moments that it reports.
// equal_training.h tests that all plans report the same.
#include <ATen/ops/dot.h>

#include "engine/equal_training.h"

namespace optimus {
namespace {

// The sum of of(state, block) over all blocks of the model.
double sum_of_blocks(const Parameters& parameters, const std::function<double(const BlockState&, int)>& of) {
  double sum = 0;
  for (int block = 0; block < parameters.num_blocks(); ++block)
    if (parameters.block(block).gradients.defined()) sum += of(parameters.block(block), block);
  return sum;
}

TEST(Noise, MultipliesGradientsWithPreviousMoments) {
  const ModelSpec model = model_of("gpt2", 4, 2);
  const Plan plan = one_device(model, 4);
  Parameters parameters(plan, model, 0, test_device());
  parameters.initialize(5);
  Engine engine(plan, model, parameters, {.device = test_device(), .seed = 9});
  // Clipped to 1e-3, so that the moment after the first step is much smaller than the gradient.
  const auto step = [&](int number, double clip) {
    const Batch batch =
        make_batch(make_samples(number * 4, 4, model.vocab), plan, number, std::int64_t{number} * 4);
    return engine.train_step(batch, {.learning_rate = 1e-2, .clip = clip, .measures_gradient_noise = true})
        .value();
  };
  const double norm = step(0, 1e-3).grad_norm;
  EXPECT_EQ(engine.noise.num_steps, 0) << "there was no previous moment";
  EXPECT_NEAR(engine.noise.moment, 0.1 * 1e-3 / (norm + 1e-6), 1e-12);
  std::vector<at::Tensor> moments;
  for (int block = 0; block < parameters.num_blocks(); ++block) {
    const at::Tensor& first = parameters.block(block).first_moment;
    moments.push_back(first.defined() ? first.clone() : first);
  }
  const double moment = engine.noise.moment;
  const StepReport report = step(1, 0);
  const double product = sum_of_blocks(parameters, [&](const BlockState& state, int block) {
    return at::dot(state.gradients, moments[static_cast<std::size_t>(block)]).item<double>();
  });
  const double gradient = product / static_cast<double>(report.num_targets) / moment;
  ASSERT_NE(gradient, 0);
  // Doubles, several thousand terms in a different order: 1e-12 of |gradient| |moment|, which is not much
  // larger than the product.
  const double rate = 0.02, most = report.grad_norm * norm;
  EXPECT_EQ(engine.noise.num_steps, 1);
  EXPECT_NEAR(engine.noise.gradient, rate * gradient, 1e-12 * most);
  EXPECT_NEAR(engine.noise.noise, rate * 4 * (report.grad_norm * report.grad_norm - gradient), 1e-11 * most);
  EXPECT_NEAR(engine.noise.moment, 0.9 * moment + 0.1, 1e-12);
}

TEST(Noise, NotMeasuredByDefault) {
  const ModelSpec model = model_of("gpt2", 4, 2);
  const Plan plan = one_device(model, 4);
  Parameters parameters(plan, model, 0, test_device());
  parameters.initialize(5);
  Engine engine(plan, model, parameters, {.device = test_device(), .seed = 9});
  const Batch batch = make_batch(make_samples(0, 4, model.vocab), plan, 0, 0);
  EXPECT_TRUE(engine.train_step(batch, {.learning_rate = 1e-2}).has_value());
  EXPECT_EQ(engine.noise, NoiseScale{});
}

}  // namespace
}  // namespace optimus
