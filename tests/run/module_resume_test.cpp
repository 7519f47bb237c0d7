// Models of torch modules can be stopped and resumed like all others.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "base/temporary_folder.h"
#include "run/train_modules.h"

namespace optimus {
namespace {

ModuleModel small_net() {
  at::manual_seed(3);
  ModuleModel model{.name = "net", .loss = [](const at::Tensor& logits, const at::Tensor& labels) {
                      return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
                    }};
  model.add("first", torch::nn::Linear(12, 16));
  model.add("second", torch::nn::Linear(16, 4));
  return model;
}

const ModuleData kData{40, [](std::int64_t number) {
                         const auto n = static_cast<double>(number);
                         return ModuleSample{at::sin(at::arange(12, at::kFloat) * (0.1 + 0.03 * n) + n),
                                             at::scalar_tensor(number % 4, at::kLong)};
                       }};

TrainOptions options_of(const Path& run, std::int64_t steps) {
  TrainOptions options;
  options.run = run, options.steps = steps, options.batch = 8, options.warmup = 2;
  options.shape = LearningRateShape::constant;
  return options;
}

TEST(ModuleResume, EqualsUninterruptedRun) {
  const TemporaryFolder folder;
  const ModuleModel whole = small_net(), parts = small_net();
  const TrainResult once = train(whole, kData, options_of(folder.path() / "whole", 12));
  train(parts, kData, options_of(folder.path() / "parts", 5));
  TrainOptions more;
  more.resume = folder.path() / "parts", more.steps = 12;
  const ModuleModel fresh = small_net();  // its values are replaced by the checkpoint
  const TrainResult resumed = train(fresh, kData, more);
  EXPECT_EQ(once.loss, resumed.loss);
  for (std::size_t p = 0; p < whole.parts.size(); ++p)
    for (const auto& item : whole.parts[p].module->named_parameters())
      EXPECT_TRUE(at::equal(item.value(), fresh.parts[p].module->named_parameters()[item.key()]))
          << item.key();
}

}  // namespace
}  // namespace optimus
