// Blocks made of torch modules, compared with torch itself: the same modules, trained by torch::optim::AdamW
// in one batch, give the same gradients and parameters. The division of a batch and recomputation do not
// change the result; memory is as predicted.
#include "engine/module_block.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <thread>

#include "comm/thread_comm.h"
#include "engine/test_device.h"
#include "plan/describe.h"
#include "switching/memory.h"

namespace optimus {
namespace {

constexpr std::int64_t kBatch = 6;
constexpr UpdateOptions kUpdate{
    .learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .clip = 0};

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& targets) {
  return at::cross_entropy_loss(output, targets, {}, at::Reduction::Sum);
}

void add_function(ModuleModel& model, const char* name, at::Tensor (*function)(const at::Tensor&)) {
  model.parts.push_back({.name = name, .forward = function});
}

// Returns the same values on each call.
ModuleModel conv_net() {
  at::manual_seed(3);
  ModuleModel model{.name = "conv", .loss = cross_entropy};
  model.add("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3).padding(1)));
  model.add("norm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(1, 5)));
  add_function(model, "pool", [](const at::Tensor& x) { return at::max_pool2d(at::relu(x), 2).flatten(1); });
  model.add("output", torch::nn::Linear(5 * 3 * 3, 4));
  return model;
}

ModuleModel mlp() {
  at::manual_seed(4);
  ModuleModel model{.name = "mlp", .loss = cross_entropy};
  add_function(model, "flat", [](const at::Tensor& x) { return x.flatten(1); });
  model.add("first", torch::nn::Linear(72, 16));
  add_function(model, "tanh", [](const at::Tensor& x) { return x.tanh(); });
  model.add("second", torch::nn::Linear(16, 4));
  return model;
}

// A single part, with a weight of five dimensions.
ModuleModel volume() {
  at::manual_seed(5);
  ModuleModel model{.name = "volume", .loss = cross_entropy};
  torch::nn::Conv3d conv(torch::nn::Conv3dOptions(1, 4, {2, 3, 3}));
  model.parts.push_back({"all", conv.ptr(), [conv](const at::Tensor& x) mutable {
                           return conv->forward(x.unsqueeze(1)).mean({2, 3, 4});
                         }});
  return model;
}

ModuleSample sample(std::int64_t number) {
  const auto n = static_cast<double>(number);
  return {at::sin(at::arange(72, at::kDouble) * (0.1 + 0.03 * n) + n).reshape({2, 6, 6}),
          at::scalar_tensor(number % 4, at::kLong)};
}
const ModuleData kData{40, sample};

Plan plan_of(const ModelSpec& spec, Precision precision, int microbatch,
             RecomputeMode mode = RecomputeMode::none) {
  UniformPlan shape{.microbatch = microbatch, .batch = kBatch, .precision = precision};
  shape.strategy.recompute = mode;
  return uniform_plan(spec, shape);
}

using Values = std::map<std::string, at::Tensor>;

struct TrainingResult {
  std::vector<double> losses;
  Values gradients, parameters;  // gradients: of the first step; parameters: after the last
};

TrainingResult train_here(const ModuleModel& model, Precision precision, int microbatch, int steps,
                          RecomputeMode mode = RecomputeMode::none) {
  // The modules get back the type that they had before.
  for (const ModulePart& part : model.parts)
    if (part.module) part.module->to(types_of(precision).wide);
  const ModuleDescription facts = describe(model, kData.read(0), precision, test_device());
  const Plan plan = plan_of(facts.spec, precision, microbatch, mode);
  Parameters parameters(plan, facts.spec, 0, test_device());
  TrainingResult result;
  {
    set_values(model, parameters);
    const ModuleBinding binding(model, facts, parameters);
    Engine engine(plan, facts.spec, parameters,
                  {.device = test_device(), .make_custom_block = module_blocks(model, facts)});
    for (int step = 0; step < steps; ++step) {
      result.losses.push_back(
          engine.train_step(read_batch(kData, facts, plan, step, step * plan.batch, 1), kUpdate)
              .value()
              .loss);
      for (const LogicalTensor& tensor : parameters.tensors())
        if (step == 0) result.gradients[tensor.name] = parameters.gradient(tensor.name) / kBatch;
    }
  }
  for (const ModulePart& part : model.parts)
    if (part.module)
      for (const auto& item : part.module->named_parameters())
        result.parameters[part.name + "." + item.key()] = item.value().detach().clone();
  return result;
}

TrainingResult train_by_torch(const ModuleModel& model, Precision precision, int steps) {
  const at::ScalarType type = types_of(precision).element;
  const ModuleDescription facts = describe(model, kData.read(0), precision, test_device());
  const Plan plan = plan_of(facts.spec, precision, kBatch);
  Values all;
  std::vector<at::Tensor> decayed, others;
  for (const ModulePart& part : model.parts) {
    if (!part.module) continue;
    part.module->to(type);
    for (const auto& item : part.module->named_parameters()) {
      all[part.name + "." + item.key()] = item.value();
      (item.value().dim() > 1 ? decayed : others).push_back(item.value());
    }
  }
  const auto options = [](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(kUpdate.learning_rate)
                                                            .betas({kUpdate.beta1, kUpdate.beta2})
                                                            .eps(kUpdate.epsilon)
                                                            .weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, options(kUpdate.weight_decay));
  groups.emplace_back(others, options(0));
  torch::optim::AdamW optimizer(groups);
  TrainingResult result;
  for (int step = 0; step < steps; ++step) {
    const Batch batch = read_batch(kData, facts, plan, step, step * plan.batch, 1);
    optimizer.zero_grad();
    at::Tensor x = batch.microbatches[0].inputs.to(type);
    for (const ModulePart& part : model.parts) x = part.forward(x);
    const at::Tensor loss = model.loss(x, batch.microbatches[0].labels) / kBatch;
    loss.backward();
    result.losses.push_back(loss.item<double>());
    if (step == 0)
      for (const auto& [name, tensor] : all) result.gradients[name] = tensor.grad().clone();
    optimizer.step();
  }
  for (const auto& [name, tensor] : all) result.parameters[name] = tensor.detach().clone();
  return result;
}

void expect_near(const Values& a, const Values& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    const at::Tensor x = value.to(at::kCPU, at::kDouble),
                     y = b.at(name).to(at::kCPU, at::kDouble).reshape(value.sizes());
    EXPECT_LE((x - y).norm().item<double>(), tolerance * (y.norm().item<double>() + 1e-12)) << name;
  }
}

void expect_equal_results(const TrainingResult& a, const TrainingResult& b, double tolerance) {
  for (std::size_t i = 0; i < b.losses.size(); ++i)
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance * b.losses[i]) << i;
  expect_near(a.gradients, b.gradients, tolerance);
  expect_near(a.parameters, b.parameters, tolerance);
}

// The modules of one rank, and its results.
struct ModuleRank {
  ModuleModel model;
  ModuleDescription facts;
  std::vector<double> losses;
  std::string problem;
};

void train_rank(ModuleRank& rank, const Plan& plan, Comm& comm, int steps) {
  Parameters parameters(plan, rank.facts.spec, comm.rank(), test_device());
  set_values(rank.model, parameters);
  const ModuleBinding binding(rank.model, rank.facts, parameters);
  EngineOptions options{.device = test_device(), .make_custom_block = module_blocks(rank.model, rank.facts)};
  options.rank = comm.rank(), options.comm = &comm, options.timeout = Seconds(60);
  Engine engine(plan, rank.facts.spec, parameters, options);
  throw_if_failed(comm.connect(0, engine.groups(), Deadline::after(Seconds(60), "connecting")));
  for (int step = 0; step < steps; ++step)
    rank.losses.push_back(value_or_throw(engine.train_step(read_batch(kData, rank.facts, plan, step,
                                                                      step * plan.batch, 1, comm.rank()),
                                                           kUpdate))
                              .loss);
}

// Trains ranks as threads, each with its own modules; fp64, 1e-9 as in parallel_test.cpp.
template <typename Make>
void expect_equal_to_one_device(Make make, UniformPlan shape) {
  const TrainingResult one = train_here(make(), Precision::fp64, kBatch, 4);
  shape.batch = kBatch, shape.precision = Precision::fp64;
  const int size = shape.pp * shape.dp;
  std::vector<ModuleRank> ranks(static_cast<std::size_t>(size));
  for (ModuleRank& rank : ranks) {
    rank.model = make();
    for (const ModulePart& part : rank.model.parts)
      if (part.module) part.module->to(at::kDouble);
    rank.facts = describe(rank.model, kData.read(0), Precision::fp64, test_device());
  }
  const Plan plan = uniform_plan(ranks[0].facts.spec, shape);
  SCOPED_TRACE(short_text(plan));
  ThreadWorld world(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r, comm = std::shared_ptr<Comm>(world.comm(r))] {
      try {
        train_rank(ranks[static_cast<std::size_t>(r)], plan, *comm, 4);
      } catch (const std::exception& error) {
        ranks[static_cast<std::size_t>(r)].problem = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < size; ++r) {
    const ModuleRank& rank = ranks[static_cast<std::size_t>(r)];
    ASSERT_EQ(rank.problem, "");
    ASSERT_EQ(rank.losses.size(), one.losses.size());
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(rank.losses[i], one.losses[i], 1e-9 * one.losses[i]) << "step " << i;
    if (shape.strategy.zero == 3) continue;  // modules only have the rows of their own shard
    const Stage& stage = plan.pipelines[0].stages[static_cast<std::size_t>(location_of(plan, r).stage)];
    for (const Chunk& chunk : stage.chunks)
      for (int block = chunk.first_block(); block < chunk.end_block(); ++block) {
        const ModulePart& part = rank.model.parts[static_cast<std::size_t>(block)];
        if (!part.module) continue;
        for (const auto& item : part.module->named_parameters())
          EXPECT_TRUE(
              at::allclose(item.value(), one.parameters.at(part.name + "." + item.key()), 1e-9, 1e-12))
              << part.name << "." << item.key();
      }
  }
}

// Data parallelism and ZeRO 1 to 3, with and without recomputation, and a batch that does not divide evenly.
TEST(ModuleBlock, DataParallelMatchesOneDevice) {
  for (const auto make : {conv_net, mlp})
    for (const int zero : {0, 1, 2, 3})
      for (const RecomputeMode mode : {RecomputeMode::none, RecomputeMode::full}) {
        if (zero == 3 && mode == RecomputeMode::none) continue;  // rejected: see below
        UniformPlan shape{.dp = 4};
        shape.strategy.zero = zero, shape.strategy.recompute = mode;
        expect_equal_to_one_device(make, shape);
      }
}

TEST(ModuleBlock, PipelinesMatchOneDevice) {
  for (const auto make : {conv_net, mlp})
    for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
      for (const int dp : {1, 2})
        for (const RecomputeMode mode : {RecomputeMode::none, RecomputeMode::full}) {
          UniformPlan shape{.pp = 2, .dp = dp, .microbatch = 1, .schedule = schedule};
          shape.strategy.zero = dp - 1, shape.strategy.recompute = mode;
          expect_equal_to_one_device(make, shape);
        }
}

// Autograd saves references to weights. With ZeRO 3 these are freed before the backward, unless the forward
// is recomputed just before it.
TEST(ModuleBlock, Zero3RequiresFullRecompute) {
  const ModuleDescription facts = describe(mlp(), kData.read(0), Precision::fp32, test_device());
  UniformPlan shape{.dp = 2, .batch = kBatch, .precision = Precision::fp32};
  shape.strategy.zero = 3;
  EXPECT_THROW(ensure_engine_supports(uniform_plan(facts.spec, shape), facts.spec), UserError);
  shape.strategy.recompute = RecomputeMode::full;
  EXPECT_NO_THROW(ensure_engine_supports(uniform_plan(facts.spec, shape), facts.spec));
}

TEST(ModuleBlock, MatchesTorch) {
  for (ModuleModel (*make)() : {conv_net, mlp, volume})
    for (const auto& [precision, tolerance] : {std::pair{Precision::fp64, 1e-9}, {Precision::fp32, 1e-5}}) {
      SCOPED_TRACE(make().name + " " + text(precision));
      expect_equal_results(train_here(make(), precision, 2, 10), train_by_torch(make(), precision, 10),
                           tolerance);
    }
}

TEST(ModuleBlock, MicrobatchSizeDoesNotChangeResults) {
  for (ModuleModel (*make)() : {conv_net, mlp}) {
    const TrainingResult whole = train_here(make(), Precision::fp64, kBatch, 5);
    for (const int microbatch : {1, 3, 4})
      expect_equal_results(train_here(make(), Precision::fp64, microbatch, 5), whole, 1e-11);
  }
}

TEST(ModuleBlock, RecomputeIsBitIdentical) {
  for (ModuleModel (*make)() : {conv_net, mlp}) {
    const TrainingResult once = train_here(make(), Precision::fp32, 2, 5),
                         twice = train_here(make(), Precision::fp32, 2, 5, RecomputeMode::full);
    EXPECT_EQ(once.losses, twice.losses);
    for (const auto& [name, value] : once.parameters)
      EXPECT_TRUE(at::equal(value, twice.parameters.at(name))) << name;
  }
}

TEST(ModuleBlock, SixteenBitPrecisionLearns) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const TrainingResult narrow = train_here(mlp(), precision, 3, 30);
    EXPECT_LT(narrow.losses.back(), 0.35 * narrow.losses.front()) << text(precision);
    // The modules have their own type again.
    for (const auto& [name, value] : narrow.parameters) EXPECT_EQ(value.scalar_type(), at::kFloat) << name;
  }
}

// Layers large enough that buffers of the step outweigh small tensors.
ModuleModel large() {
  ModuleModel model{.name = "large", .loss = cross_entropy};
  model.add("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 32, 3).padding(1)));
  add_function(model, "relu1", [](const at::Tensor& x) { return at::relu(x); });
  model.add("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 32, 3).padding(1)));
  add_function(model, "gelu", [](const at::Tensor& x) { return at::gelu(at::gelu(x)).flatten(1); });
  model.add("output", torch::nn::Linear(32 * 24 * 24, 4));
  return model;
}

// As accurate as for hand-written blocks.
TEST(ModuleBlock, PredictedMemoryMatchesUsage) {
  const ModuleData data{8, [](std::int64_t n) {
                          return ModuleSample{at::full({2, 24, 24}, static_cast<double>(n)),
                                              at::scalar_tensor(n % 4, at::kLong)};
                        }};
  for (const RecomputeMode mode : {RecomputeMode::none, RecomputeMode::full}) {
    const ModuleModel model = large();
    const ModuleDescription facts = describe(model, data.read(0), Precision::fp32, test_device());
    UniformPlan shape{.microbatch = 8, .batch = 16, .precision = Precision::fp32};
    shape.strategy.recompute = mode;
    const Plan plan = uniform_plan(facts.spec, shape);
    const Batch batch = read_batch(data, facts, plan, 0, 0, 1);
    const auto predicted = static_cast<double>(predicted_memory(plan, facts.spec, 0, test_device()).value);
    MemoryWatch memory;
    {
      Parameters parameters(plan, facts.spec, 0, test_device());
      set_values(model, parameters);
      const ModuleBinding binding(model, facts, parameters);
      Engine engine(plan, facts.spec, parameters,
                    {.device = test_device(), .make_custom_block = module_blocks(model, facts)});
      for (int step = 0; step < 2; ++step) engine.train_step(batch, kUpdate).value();
      EXPECT_NEAR(static_cast<double>(memory.peak()) / predicted, 1, 0.02) << text(mode);
    }
  }
}

TEST(ModuleBlock, DescribeReportsShapesAndWork) {
  const ModuleDescription facts = describe(conv_net(), kData.read(0), Precision::fp32, test_device());
  ASSERT_EQ(facts.spec.custom.size(), 4u);
  EXPECT_EQ(facts.input_shapes[1], (std::vector<std::int64_t>{5, 6, 6}));
  EXPECT_EQ(facts.spec.custom[2].outputs, 45);
  EXPECT_EQ(facts.spec.custom[3].outputs, 0);
  EXPECT_EQ(num_parameters(facts.spec), 5 * 2 * 9 + 5 + 10 + 45 * 4 + 4);
  EXPECT_EQ(facts.spec.custom[0].forward_flops, 2 * 36 * 5 * 2 * 9);
  EXPECT_EQ(facts.spec.custom[3].forward_flops, 2 * 45 * 4);
  EXPECT_GE(facts.spec.custom[2].graph.per_sample, 45 * 8);  // 64-bit indices of the maxima
}

TEST(ModuleBlock, AcceptsIntegerInputs) {
  ModuleModel model{.name = "words", .loss = cross_entropy};
  model.add("table", torch::nn::Embedding(11, 6));
  add_function(model, "mean", [](const at::Tensor& x) { return x.mean(1); });
  model.add("output", torch::nn::Linear(6, 4));
  const ModuleData data{
      4, [](std::int64_t n) {
        return ModuleSample{(at::arange(5, at::kLong) + n) % 11, at::scalar_tensor(n, at::kLong)};
      }};
  const ModuleDescription facts = describe(model, data.read(0), Precision::fp32, test_device());
  const Plan plan = plan_of(facts.spec, Precision::fp32, 4);
  Parameters parameters(plan, facts.spec, 0, test_device());
  set_values(model, parameters);
  const ModuleBinding binding(model, facts, parameters);
  Engine engine(plan, facts.spec, parameters,
                {.device = test_device(), .make_custom_block = module_blocks(model, facts)});
  const Batch batch = read_batch(data, facts, plan, 0, 0, 1);
  const double first = engine.train_step(batch, kUpdate).value().loss;
  for (int step = 0; step < 150; ++step) engine.train_step(batch, kUpdate).value();
  EXPECT_LT(engine.evaluate(batch).value().loss_sum / kBatch, 0.5 * first);
}

std::string error_message(const ModuleModel& model) {
  try {
    describe(model, kData.read(0), Precision::fp32, test_device());
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ModuleBlock, RejectsPlanDependentModules) {
  ModuleModel model = conv_net();
  model.parts[1] = {};
  model.parts[1].name = "empty";
  EXPECT_NE(error_message(model).find("has no forward"), std::string::npos);
  const auto with = [](auto module) {
    ModuleModel changed = conv_net();
    changed.add("strange", module);
    std::swap(changed.parts[1], changed.parts.back());
    changed.parts.pop_back();
    return changed;
  };
  EXPECT_NE(error_message(with(torch::nn::BatchNorm2d(5))).find("changes its buffers"), std::string::npos);
  EXPECT_NE(
      error_message(with(torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(5).track_running_stats(false))))
          .find("in different batches"),
      std::string::npos);
  EXPECT_NE(error_message(with(torch::nn::Dropout2d(0.5))).find("is random"), std::string::npos);
  EXPECT_NE(error_message(with(torch::nn::Linear(7, 3))).find("failed in its trial"), std::string::npos);
  ModuleModel twice = conv_net();
  torch::nn::Linear shared(4, 4);
  twice.add("a", shared), twice.add("b", shared);
  EXPECT_NE(error_message(twice).find("belongs to an earlier part"), std::string::npos);
}

TEST(ModuleBlock, SampleOrderDependsOnSeed) {
  const ModuleDescription facts = describe(mlp(), kData.read(0), Precision::fp32, test_device());
  const auto inputs = [&](int microbatch, std::int64_t step, std::int64_t seed) {
    const Plan plan = plan_of(facts.spec, Precision::fp32, microbatch);
    const Batch batch = read_batch(kData, facts, plan, step, step * plan.batch, seed);
    std::vector<at::Tensor> all;
    for (const Microbatch& some : batch.microbatches) all.push_back(some.inputs);
    return at::cat(all);
  };
  EXPECT_TRUE(at::equal(inputs(1, 8, 1), inputs(6, 8, 1)));
  EXPECT_FALSE(at::equal(inputs(6, 8, 1), inputs(6, 8, 2)));
}

}  // namespace
}  // namespace optimus
