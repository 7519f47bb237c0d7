// Example: trains a small convolutional network, written with torch's modules, on synthetic images: ten
// patterns with noise.
//
//   example_conv_net [RUN_FOLDER]
#include <ATen/ATen.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>

#include "base/random.h"
#include "run/train_modules.h"

namespace {

constexpr std::int64_t kClasses = 10, kSide = 12, kTrained = 4096, kHeldOut = 1000;

// Deterministic: the values depend only on the key.
at::Tensor normal_image(optimus::RandomKey key) {
  const optimus::Shape shape{kSide, kSide};
  at::Tensor image = at::empty({1, kSide, kSide});
  optimus::fill_normal(key, shape, optimus::Box(shape),
                       std::span(image.data_ptr<float>(), static_cast<std::size_t>(kSide * kSide)));
  return image;
}

optimus::ModuleSample sample(std::int64_t number) {
  const optimus::RandomKey key(7);
  const std::int64_t label = number % kClasses;
  const at::Tensor pattern = normal_image(key.derive("pattern").derive(static_cast<std::uint64_t>(label)));
  const at::Tensor noise = normal_image(key.derive("noise").derive(static_cast<std::uint64_t>(number)));
  return {pattern + 1.5 * noise, at::scalar_tensor(label, at::kLong)};
}

optimus::ModuleModel conv_net() {
  optimus::ModuleModel model{.name = "conv-net"};
  const auto then = [&](const char* name, at::Tensor (*function)(const at::Tensor&)) {
    model.parts.push_back({.name = name, .forward = function});
  };
  model.add("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
  then("pool1", [](const at::Tensor& x) { return at::max_pool2d(at::relu(x), 2); });
  model.add("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)));
  then("pool2", [](const at::Tensor& x) { return at::max_pool2d(at::relu(x), 2).flatten(1); });
  model.add("output", torch::nn::Linear(32 * (kSide / 4) * (kSide / 4), kClasses));
  model.loss = [](const at::Tensor& output, const at::Tensor& targets) {
    return at::cross_entropy_loss(output, targets, {}, at::Reduction::Sum);
  };
  return model;
}

// Accuracy on held-out images, computed with the trained modules.
double accuracy(const optimus::ModuleModel& model) {
  const at::NoGradGuard no_grad;
  std::int64_t right = 0;
  for (std::int64_t number = kTrained; number < kTrained + kHeldOut; ++number) {
    const optimus::ModuleSample held_out = sample(number);
    at::Tensor x = held_out.input.unsqueeze(0);
    for (const optimus::ModulePart& part : model.parts) x = part.forward(x);
    right += x.argmax().item<std::int64_t>() == held_out.target.item<std::int64_t>();
  }
  return static_cast<double>(right) / kHeldOut;
}

}  // namespace

int main(int argc, char** argv) {
  at::manual_seed(1);
  const optimus::ModuleModel model = conv_net();
  optimus::TrainOptions options;
  options.steps = 150, options.batch = 64, options.learning_rate = 3e-3;
  options.device = "cpu", options.threads = 1;  // one thread: the network is too small for several
  if (argc > 1) options.run = argv[1];
  try {
    const optimus::TrainResult result = optimus::train(model, {kTrained, sample}, options);
    const double right = accuracy(model);
    std::printf("loss %.4f after %lld steps, accuracy %.1f %%\n", result.loss,
                static_cast<long long>(result.steps), 100 * right);
    return right > 0.95 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "example_conv_net: %s\n", error.what());
    return 1;
  }
}
