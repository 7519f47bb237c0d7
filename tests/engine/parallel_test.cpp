// Parallel = equal: a plan of several devices, each a thread, learns what one device learns. fp64, so that nothing but the order
// of sums is left: after a few steps of AdamW every weight agrees within 1e-9 of its tensor's norm (DESIGN: 1e-9 after 20 steps).
//
// Random plans over tensor and data parallelism, ZeRO, hybrid sharding, sequence parallelism, accumulation, recompute and batches
// that do not divide; GPT-2, Llama with grouped heads, Qwen 3 with norms of heads, BERT. Dropout is on.
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"
#include "comm/thread_comm.h"
#include "engine/engine.h"
#include "engine/test_device.h"
#include "model/open.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "plan/validate.h"

namespace optimus {
namespace {

constexpr std::int64_t kLength = 12;

ModelSpec model_of(const std::string& preset, std::int64_t heads, std::int64_t kv_heads, int layers = 2) {
  ModelOverrides overrides{.layers = layers,
                           .hidden = 4 * heads,
                           .heads = heads,
                           .head_dim = 4,
                           .ffn = 22,
                           .vocab = 53,
                           .max_positions = 16};
  if (preset.starts_with("llama") || preset.starts_with("qwen")) overrides.kv_heads = kv_heads;
  ModelSpec model = with_overrides(open_model(preset), overrides);
  model.embedding_dropout = model.hidden_dropout = model.attention_dropout = 0.1;
  return model;
}

std::vector<Sample> samples_of(std::int64_t first, std::int64_t count, std::int64_t vocab) {
  std::vector<Sample> result;
  for (std::int64_t s = first; s < first + count; ++s) {
    const std::int64_t length = s % 3 == 2 ? 9 : kLength;  // so that padding is there
    Sample& sample = result.emplace_back();
    const RandomKey key = RandomKey(3).with(static_cast<std::uint64_t>(s));
    for (std::int64_t i = 0; i < length; ++i) {
      sample.inputs.push_back(static_cast<TokenId>(
          random_below(key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocab))));
      sample.targets.push_back(i % 5 == 4 ? kNoTarget
                                          : (sample.inputs.back() * 7 + 1) % static_cast<TokenId>(vocab));
      sample.positions.push_back(static_cast<std::int32_t>(i));
      sample.num_counted += sample.targets.back() != kNoTarget;
    }
  }
  return result;
}

// What was learned: losses and norms of the steps, and the whole masters, put together from whoever holds which part.
struct Learned {
  std::vector<double> losses, norms;
  double evaluated = 0;
  std::map<std::string, std::vector<double>> tensors;
};

void put(const Parameters& parameters, Learned& learned) {
  for (const LogicalTensor& tensor : parameters.tensors()) {
    const at::Tensor view = parameters.master(tensor.name);
    if (!view.defined() || view.numel() == 0) continue;
    std::vector<double>& all = learned.tensors[tensor.name];
    all.resize(static_cast<std::size_t>(tensor.shape.num_elements()));
    const Box box = parameters.box(tensor.name, &BlockState::masters);
    std::vector<std::int64_t> sizes;
    for (int d = 0; d < tensor.shape.num_dims; ++d) sizes.push_back(tensor.shape[d]);
    at::Tensor target = at::from_blob(all.data(), sizes, at::kDouble);
    for (int d = 0; d < box.num_dims; ++d) target = target.narrow(d, box[d].begin, box[d].size());
    target.copy_(view);
  }
}

// One rank's training. Returns what it saw; its part of the tensors is put into `all` by whoever joins the threads.
Learned train_rank(const ModelSpec& model, const Plan& plan, int rank, Comm* comm, int steps,
                   Parameters& parameters) {
  parameters.initialize(5);
  EngineOptions options{.device = test_device(), .seed = 9};
  options.rank = rank, options.comm = comm, options.patience = Seconds(60);
  Engine engine(plan, model, parameters, options);
  if (comm != nullptr)
    done_or_throw(comm->connect(0, engine.program().groups, Deadline::after(Seconds(60), "connecting")));
  Learned learned;
  for (int step = 0; step < steps; ++step) {
    const std::int64_t first = step * plan.batch;
    const StepReport report = value_or_throw(
        engine.train_step(make_batch(samples_of(first, plan.batch, model.vocab), plan, step, first, rank),
                          {.learning_rate = 1e-2}));
    learned.losses.push_back(report.loss), learned.norms.push_back(report.grad_norm);
  }
  learned.evaluated = value_or_throw(engine.evaluate(make_batch(samples_of(1000, plan.batch, model.vocab),
                                                                plan, 0, 1000, rank)))
                          .loss_sum;
  return learned;
}

Learned train(const ModelSpec& model, const Plan& plan, int steps) {
  const int size = num_devices(plan);
  if (size == 1) {
    Parameters parameters(plan, model, plan.pipelines[0].stages[0].devices[0], test_device());
    Learned learned = train_rank(model, plan, 0, nullptr, steps, parameters);
    put(parameters, learned);
    return learned;
  }
  ThreadWorld world(size);
  std::vector<Learned> ranks(static_cast<std::size_t>(size));
  std::vector<std::string> problems(ranks.size());
  std::vector<std::unique_ptr<Parameters>> parameters(ranks.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      const std::unique_ptr<Comm> comm = world.comm(rank);
      try {
        parameters[at] = std::make_unique<Parameters>(plan, model, rank, test_device());
        ranks[at] = train_rank(model, plan, rank, comm.get(), steps, *parameters[at]);
      } catch (const std::exception& error) {
        problems[at] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t r = 0; r < problems.size(); ++r)
    EXPECT_EQ(problems[r], "") << "rank " << r << " of " << short_text(plan);
  Learned all = ranks[0];
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].losses, all.losses) << "rank " << r;
    if (parameters[r] != nullptr) put(*parameters[r], all);
  }
  return all;
}

// Norm-wise distance of two tensors.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), size += a[i] * a[i];
  return std::sqrt(difference / std::max(size, 1e-300));
}

// Key biases without RoPE have no gradient but rounding noise, which Adam normalizes (DESIGN.md): they are left out.
bool is_noise(const ModelSpec& model, const std::string& name) {
  return model.positions != PositionKind::rope && name.find("attention.k.bias") != std::string::npos;
}

void expect_equal(const ModelSpec& model, const Plan& plan, const Learned& one, const Learned& many) {
  constexpr double kTolerance = 1e-9;
  const std::string what = short_text(plan);
  SCOPED_TRACE(what);
  ASSERT_EQ(one.losses.size(), many.losses.size()) << what;
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(one.losses[i], many.losses[i], kTolerance * one.losses[i]) << what << " step " << i;
    EXPECT_NEAR(one.norms[i], many.norms[i], kTolerance * one.norms[i]) << what << " step " << i;
  }
  EXPECT_NEAR(one.evaluated, many.evaluated, kTolerance * one.evaluated) << what;
  for (const auto& [name, values] : one.tensors) {
    const auto found = many.tensors.find(name);
    ASSERT_NE(found, many.tensors.end()) << what << " " << name;
    if (is_noise(model, name)) continue;
    EXPECT_LT(distance(values, found->second), kTolerance) << what << " " << name;
  }
}

Plan one_device(const ModelSpec& model, std::int64_t batch) {
  return uniform_plan(model, {.microbatch = static_cast<int>(batch),
                              .batch = batch,
                              .sequence_length = kLength,
                              .precision = Precision::fp64});
}

void expect_equal_to_one_device(const ModelSpec& model, const UniformPlan& shape, int steps = 4) {
  UniformPlan wide = shape;
  wide.sequence_length = kLength, wide.precision = Precision::fp64;
  const Plan plan = uniform_plan(model, wide);
  ASSERT_EQ(problem_in(plan, model), std::nullopt);
  expect_equal(model, plan, train(model, one_device(model, shape.batch), steps), train(model, plan, steps));
}

TEST(Parallel, TensorParallelEqualsOneDevice) {
  for (const char* preset : {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"})
    for (const int tp : {2, 3})
      for (const bool is_sequence_parallel : {false, true}) {
        UniformPlan shape{.microbatch = 3, .batch = 5};
        shape.strategy.tp = tp, shape.strategy.sequence_parallel = is_sequence_parallel;
        SCOPED_TRACE(preset);
        expect_equal_to_one_device(model_of(preset, 6, 2), shape);
      }
}

TEST(Parallel, PipelinesEqualOneDevice) {
  for (const char* preset : {"gpt2", "llama3-8b", "bert-base"})
    for (const Schedule schedule :
         {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zero_bubble})
      for (const int pp : {2, 3}) {
        UniformPlan shape{.pp = pp, .microbatch = 1, .batch = 5};
        shape.schedule = schedule;
        if (schedule == Schedule::interleaved) shape.chunks = 2;
        SCOPED_TRACE(preset);
        expect_equal_to_one_device(model_of(preset, 4, 2, 4), shape);
      }
}

TEST(Parallel, DataParallelAndZeroEqualOneDevice) {
  for (const char* preset : {"gpt2", "llama3-8b", "bert-base"})
    for (const int zero : {0, 1, 2, 3})
      for (const int group : {0, 2}) {
        if (zero == 0 && group > 0) continue;
        UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 6};
        shape.strategy.zero = zero, shape.strategy.shard_group = group;
        SCOPED_TRACE(preset);
        expect_equal_to_one_device(model_of(preset, 4, 2), shape);
      }
}

// A random plan of up to eight devices.
UniformPlan random_shape(const RandomKey& key, std::int64_t heads) {
  std::uint64_t next = 0;
  const auto below = [&](std::uint64_t bound) { return static_cast<int>(random_below(key, next++, bound)); };
  UniformPlan shape;
  LayerStrategy& s = shape.strategy;
  s.tp = 1 + below(std::min<std::uint64_t>(4, static_cast<std::uint64_t>(heads)));
  shape.pp = 1 + below(static_cast<std::uint64_t>(8 / s.tp));
  shape.dp = 1 + below(static_cast<std::uint64_t>(8 / s.tp / shape.pp));
  if (shape.pp > 1) {
    shape.schedule = static_cast<Schedule>(below(4));
    if (shape.schedule == Schedule::interleaved) shape.chunks = 1 + below(3);
  }
  s.sequence_parallel = s.tp > 1 && below(2) == 1;
  s.zero = below(4);
  if (s.zero > 0 && shape.dp % 2 == 0 && below(2) == 1) s.shard_group = 2;
  s.recompute = static_cast<RecomputeMode>(below(3));
  if (s.recompute == RecomputeMode::full) s.recompute_layers = 1 + below(2);
  shape.microbatch = 1 + below(2);
  shape.batch = 1 + below(9);
  return shape;
}

TEST(Parallel, RandomPlansEqualOneDevice) {
  const char* const seed = std::getenv("OPTIMUS_SEED");
  const bool is_long = std::getenv("OPTIMUS_LONG") != nullptr;
  const RandomKey key = RandomKey(seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10)).with("parallel");
  const int count = is_long ? 600 : 40;
  const std::vector<std::string> presets = {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"};
  for (int i = 0; i < count && !HasFailure(); ++i) {
    const RandomKey own = key.with(static_cast<std::uint64_t>(i));
    const std::string& preset = presets[random_below(own, 100, presets.size())];
    const std::int64_t kv = 1 + static_cast<std::int64_t>(random_below(own, 101, 3)),
                       heads = kv * (1 + static_cast<std::int64_t>(random_below(own, 102, 3)));
    SCOPED_TRACE(fmt::format("plan {} of {}, {} heads, {} of keys", i, preset, heads, kv));
    const UniformPlan shape = random_shape(own, heads);
    const int layers = std::max(2, shape.pp * shape.chunks) + static_cast<int>(random_below(own, 103, 2));
    expect_equal_to_one_device(model_of(preset, heads, kv, layers), shape, 3);
  }
}

}  // namespace
}  // namespace optimus
