// Models of torch modules change their plan like all others: by script and on request. Ranks are threads.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <future>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/temporary_folder.h"
#include "engine/module_block.h"
#include "plan/plan_json.h"
#include "reshard/control.h"
#include "run/train_modules.h"

namespace optimus::module_switch {
namespace {

constexpr double kTolerance = 1e-9;  // in fp64 only the order of summation differs
constexpr std::int64_t kBatch = 6, kSteps = 24;

// Returns the same values on every call.
ModuleModel conv_net() {
  at::manual_seed(3);
  ModuleModel model{.name = "conv", .loss = [](const at::Tensor& output, const at::Tensor& targets) {
                      return at::cross_entropy_loss(output, targets, {}, at::Reduction::Sum);
                    }};
  model.add("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3).padding(1)));
  model.add("norm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(1, 5)));
  model.parts.push_back(
      {.name = "pool", .forward = [](const at::Tensor& x) { return at::max_pool2d(x, 2).flatten(1); }});
  model.add("output", torch::nn::Linear(5 * 3 * 3, 4));
  for (const ModulePart& part : model.parts)
    if (part.module != nullptr) part.module->to(at::kDouble);
  return model;
}

ModuleSample sample(std::int64_t number) {
  const auto n = static_cast<double>(number);
  return {at::sin(at::arange(72, at::kDouble) * (0.1 + 0.03 * n) + n).reshape({2, 6, 6}),
          at::scalar_tensor(number % 4, at::kLong)};
}
const ModuleData kData{40, sample};

TrainOptions options_of(const Path& run) {
  TrainOptions options;
  options.run = run, options.steps = kSteps, options.batch = kBatch, options.warmup = 2, options.threads = 1;
  options.precision = "fp64", options.device = "cpu";
  return options;
}

Plan plan_of(UniformPlan shape) {
  static const ModelSpec spec = describe(conv_net(), sample(0), Precision::fp64, at::Device(at::kCPU)).spec;
  shape.batch = kBatch, shape.precision = Precision::fp64;
  return uniform_plan(spec, shape);
}

Plan zero(int stage, int dp, RecomputeMode mode = RecomputeMode::none) {
  UniformPlan shape{.dp = dp};
  shape.strategy.zero = stage, shape.strategy.recompute = stage == 3 ? RecomputeMode::full : mode;
  return plan_of(shape);
}

Plan pipeline(int pp, int dp, Schedule schedule, int stage = 0) {
  UniformPlan shape{.pp = pp, .dp = dp, .microbatch = 1, .schedule = schedule};
  shape.strategy.zero = stage;
  return plan_of(shape);
}

std::vector<Json> rows_of(const Path& run, const char* file) {
  std::istringstream lines(value_or_throw(read_file(run / file, Bytes(1 << 26))));
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(parse_json(line, file));
  return rows;
}

void expect_same_modules(const ModuleModel& a, const ModuleModel& b) {
  for (std::size_t p = 0; p < a.parts.size(); ++p)
    if (a.parts[p].module != nullptr) {
      for (const auto& item : a.parts[p].module->named_parameters())
        EXPECT_TRUE(
            at::allclose(item.value(), b.parts[p].module->named_parameters()[item.key()], kTolerance, 1e-12))
            << a.parts[p].name << "." << item.key();
    }
}

// Runs through all the plans, four steps each, and compares with a single-device run.
class ModuleSwitch : public testing::Test {
 protected:
  std::string write(const Plan& plan, const std::string& name) {
    folder_.write(name, plan_text(plan));
    return (folder_.path() / name).string();
  }

  void expect_equal_to_one_device(const std::vector<Plan>& plans) {
    const Path one = folder_.path() / "one", many = folder_.path() / "many";
    std::filesystem::remove_all(one), std::filesystem::remove_all(many);
    const ModuleModel alone = conv_net(), model = conv_net();
    train(alone, kData, options_of(one));
    TrainOptions options = options_of(many);
    options.plan = write(plans[0], "0.json");
    for (std::size_t i = 1; i < plans.size(); ++i)
      options.switch_at +=
          fmt::format("{}{}:{}", i > 1 ? "," : "", 4 * i, write(plans[i], fmt::format("{}.json", i)));
    train(model, kData, options);
    const std::vector<Json> expected = rows_of(one, "metrics.jsonl"), seen = rows_of(many, "metrics.jsonl");
    ASSERT_EQ(seen.size(), expected.size());
    for (std::size_t i = 0; i < seen.size(); ++i)
      for (const char* key : {"loss", "grad_norm"})
        EXPECT_NEAR(seen[i].at(key).get<double>(), expected[i].at(key).get<double>(),
                    kTolerance * expected[i].at(key).get<double>())
            << key << " of step " << i + 1;
    const std::vector<Json> decisions = rows_of(many, "decisions.jsonl");
    ASSERT_EQ(decisions.size(), plans.size() - 1);
    for (const Json& decision : decisions)
      EXPECT_EQ(decision.at("moved_bytes"), decision.at("minimum_bytes")) << decision.dump();
    expect_same_modules(alone, model);
  }

  TemporaryFolder folder_;
};

TEST_F(ModuleSwitch, AnySequenceOfPlansEqualsOneDevice) {
  expect_equal_to_one_device({zero(0, 3), zero(1, 2), pipeline(3, 1, Schedule::gpipe), zero(3, 3),
                              pipeline(2, 2, Schedule::one_f_one_b, 1), zero(2, 3, RecomputeMode::full)});
  // Ranks that start and stop being used, ending on one device.
  expect_equal_to_one_device({zero(0, 1), pipeline(4, 1, Schedule::one_f_one_b), zero(3, 2),
                              zero(0, 1, RecomputeMode::full), pipeline(2, 1, Schedule::zero_bubble),
                              plan_of({.microbatch = 2})});
}

TEST_F(ModuleSwitch, ResumesOnItsLastPlan) {
  const ModuleModel alone = conv_net(), fresh = conv_net();
  TrainOptions once = options_of(folder_.path() / "once");
  once.shape = LearningRateShape::constant;
  train(alone, kData, once);
  TrainOptions options = options_of(folder_.path() / "parts");
  options.shape = LearningRateShape::constant, options.steps = 9;
  options.plan = write(zero(1, 3), "first.json");
  options.switch_at = "5:" + write(pipeline(2, 1, Schedule::one_f_one_b), "second.json");
  train(conv_net(), kData, options);
  TrainOptions more;
  more.resume = folder_.path() / "parts", more.steps = kSteps;
  train(fresh, kData, more);
  expect_same_modules(alone, fresh);
  EXPECT_EQ(rows_of(folder_.path() / "parts", "metrics.jsonl").back().at("epoch"), 1);
}

TEST_F(ModuleSwitch, SwitchesOnRequest) {
  const Path run = folder_.path() / "run";
  TrainOptions options = options_of(run);
  options.plan = write(zero(0, 2), "first.json"), options.steps = 100'000;
  options.save_every = "0";
  std::atomic<bool> is_over = false;
  const ModuleData data{40, [&](std::int64_t number) {
                          if (is_over) throw UserError("that is all");
                          return sample(number);
                        }};
  std::future<std::string> training = std::async(std::launch::async, [&]() -> std::string {
    try {
      train(conv_net(), data, options);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  });
  const auto answer_to = [&](const std::optional<Plan>& plan) {
    return value_or_throw(
        send_request(run, switch_request_json(plan), Deadline::after(Seconds(60), "the answer")));
  };
  for (const Plan& plan : {zero(2, 2), pipeline(2, 1, Schedule::gpipe), zero(3, 2)}) {
    const ControlAnswer answer = answer_to(plan);
    EXPECT_TRUE(answer.is_done) << answer.text;
  }
  const ControlAnswer automatic = answer_to(std::nullopt), large = answer_to(zero(0, 3));
  EXPECT_FALSE(automatic.is_done);
  EXPECT_NE(automatic.text.find("pass a plan with --plan FILE"), std::string::npos) << automatic.text;
  EXPECT_FALSE(large.is_done);
  EXPECT_NE(large.text.find("needs 3 devices, but the run has 2"), std::string::npos) << large.text;
  is_over = true;
  EXPECT_EQ(training.get(), "that is all");
  EXPECT_EQ(rows_of(run, "decisions.jsonl").size(), 3U);
}

TEST_F(ModuleSwitch, RejectsUnsupportedPlan) {
  TrainOptions options = options_of(folder_.path() / "run");
  UniformPlan shape{.dp = 2};
  shape.strategy.zero = 3;  // needs a forward that runs again, which is not requested
  options.switch_at = "5:" + write(plan_of(shape), "wrong.json");
  EXPECT_NE(message_of([&] { train(conv_net(), kData, options); }).find("recompute"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(options.run / "metrics.jsonl"));
}

}  // namespace
}  // namespace optimus::module_switch
