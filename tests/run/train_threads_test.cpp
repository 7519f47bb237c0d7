// train() called from a program, with ranks as threads: several devices learn the same as one, and a failing
// rank ends all.
#include "run/train_threads.h"
#include "run/train.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "base/error.h"
#include "base/json.h"
#include "base/temporary_folder.h"
#include "run/train_modules.h"

#include "run/train.h"

namespace optimus {
namespace {

// In fp64 only the order of summation differs, as in tests/engine/parallel_test.cpp.
constexpr double kTolerance = 1e-9;

ModuleModel small_net() {
  at::manual_seed(3);
  ModuleModel model{.name = "net", .loss = [](const at::Tensor& logits, const at::Tensor& labels) {
                      return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
                    }};
  model.add("first", torch::nn::Linear(torch::nn::LinearOptions(12, 16)));
  model.parts.push_back({.name = "bend", .forward = [](const at::Tensor& x) { return at::tanh(x); }});
  model.add("second", torch::nn::Linear(16, 4));
  for (const ModulePart& part : model.parts)
    if (part.module != nullptr) part.module->to(at::kDouble);
  return model;
}

ModuleSample sample(std::int64_t number) {
  const auto n = static_cast<double>(number);
  return {at::sin(at::arange(12, at::kDouble) * (0.1 + 0.03 * n) + n),
          at::scalar_tensor(number % 4, at::kLong)};
}

TrainOptions options_of(const Path& run, int devices, int zero) {
  TrainOptions options;
  options.run = run, options.steps = 6, options.batch = 10, options.warmup = 2, options.threads = 1;
  options.precision = "fp64", options.devices = devices, options.device = "cpu";
  options.layout.zero = Range{zero, zero};
  if (zero == 3) options.recompute = "full";
  return options;
}

std::size_t num_listed(const Path& run) { return read_json(run / "workers.json").at("workers").size(); }

TEST(TrainThreads, ModulesOnSeveralRanksEqualOneRank) {
  const TemporaryFolder folder;
  const ModuleModel alone = small_net();
  const TrainResult one = train(alone, {40, sample}, options_of(folder.path() / "one", 1, 0));
  for (const int zero : {0, 2, 3, -1}) {  // -1: a pipeline of three stages
    const Path run = folder.path() / fmt::format("zero-{}", zero);
    const ModuleModel model = small_net();
    TrainOptions options = options_of(run, 3, std::max(zero, 0));
    if (zero < 0) options.layout.pp = Range{3, 3}, options.microbatch = 2;
    const TrainResult many = train(model, {40, sample}, options);
    EXPECT_NEAR(many.loss, one.loss, kTolerance * one.loss) << "zero " << zero;
    EXPECT_EQ(num_listed(run), 0U);
    for (const char* log : {"rank-0.log", "rank-1.log", "rank-2.log"})
      EXPECT_TRUE(std::filesystem::exists(run / "logs" / log));
    for (const std::size_t p : {0U, 2U})
      for (const auto& item : alone.parts[p].module->named_parameters())
        EXPECT_TRUE(at::allclose(item.value(), model.parts[p].module->named_parameters()[item.key()],
                                 kTolerance, 1e-12))
            << "zero " << zero << " " << item.key();
  }
}

TEST(TrainThreads, ListsRanksDuringTraining) {
  const TemporaryFolder folder;
  const Path run = folder.path() / "run";
  std::atomic<std::size_t> most = 0;
  const ModuleData data{40, [&](std::int64_t number) {
                          if (std::filesystem::exists(run / "workers.json"))
                            most = std::max(most.load(), num_listed(run));
                          return sample(number);
                        }};
  train(small_net(), data, options_of(run, 2, 0));
  EXPECT_EQ(most, 2U);
}

TEST(TrainThreads, FailingRankEndsAll) {
  const TemporaryFolder folder;
  const ModuleData data{40, [](std::int64_t number) {
                          if (number == 23) throw UserError("sample 23 is damaged");
                          return sample(number);
                        }};
  try {
    train(small_net(), data, options_of(folder.path() / "run", 3, 1));
    FAIL() << "it trained";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "sample 23 is damaged");
  }
  EXPECT_EQ(num_listed(folder.path() / "run"), 0U);
}

TEST(TrainThreads, RejectsUnsupportedModuleLayouts) {
  const TemporaryFolder folder;
  const auto refuses = [&](const ModuleModel& model, const TrainOptions& options, const std::string& says) {
    try {
      train(model, {40, sample}, options);
      FAIL() << "it trained: " << says;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  ModuleModel model = small_net();
  TrainOptions options = options_of(folder.path() / "run", 2, 0);
  options.layout.tp = Range{2, 2};
  refuses(model, options, "tp, cp, ep and chunks are not supported");
  options = options_of(folder.path() / "run", 2, 3);
  options.recompute = "none";
  refuses(model, options, "--recompute full");
  model.parts[0].copy = nullptr;
  refuses(model, options_of(folder.path() / "run", 2, 0), "part first cannot be copied");
}

TEST(TrainThreads, TextOnSeveralRanksEqualsOneRank) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += fmt::format("line {} of the text, {}\n", i, i * 7 % 31);
  folder.write("text.txt", text);
  const auto loss = [&](int devices, std::optional<Range> tp, std::optional<Range> zero) {
    TrainOptions options;
    options.model.overrides = {.layers = 2, .hidden = 16, .heads = 2, .max_positions = 16};
    options.steps = 4, options.batch = 6, options.sequence_length = 16, options.sample_tokens = 8;
    options.precision = "fp64", options.threads = 1, options.device = "cpu";
    options.run = folder.path() / fmt::format("run-{}-{}", devices, tp.has_value());
    options.devices = devices, options.layout.tp = tp, options.layout.zero = zero;
    const TrainResult result = train("gpt2", (folder.path() / "text.txt").string(), options);
    EXPECT_FALSE(result.sample.empty());
    EXPECT_EQ(num_listed(options.run), 0U);
    return result.loss;
  };
  const double one = loss(1, std::nullopt, std::nullopt);
  EXPECT_NEAR(loss(2, Range{2, 2}, std::nullopt), one, kTolerance * one);
  EXPECT_NEAR(loss(3, std::nullopt, Range{3, 3}), one, kTolerance * one);
}

}  // namespace
}  // namespace optimus
