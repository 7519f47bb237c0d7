// Shared by tests of parallel training: small models with dropout, samples with padding, training of a plan
// by ranks as threads, and the comparison with training on one device.
#pragma once

#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "comm/thread_comm.h"
#include "engine/engine.h"
#include "engine/test_device.h"
#include "model/open.h"
#include "plan/describe.h"
#include "plan/validate.h"

namespace optimus {

inline constexpr std::int64_t kLength = 12;

inline ModelSpec model_of(const std::string& preset, std::int64_t heads, std::int64_t kv_heads,
                          int layers = 2) {
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

struct SampleKinds {
  bool is_padded = true;       // one in three is shorter
  bool has_uncounted = false;  // one in seven has no counted targets
};
inline std::vector<Sample> make_samples(std::int64_t first, std::int64_t count, std::int64_t vocab,
                                        const SampleKinds& kinds = {}) {
  std::vector<Sample> result;
  for (std::int64_t s = first; s < first + count; ++s) {
    const std::int64_t length = kinds.is_padded && s % 3 == 2 ? 9 : kLength;
    Sample& sample = result.emplace_back();
    const RandomKey key = RandomKey(3).derive(static_cast<std::uint64_t>(s));
    for (std::int64_t i = 0; i < length; ++i) {
      sample.inputs.push_back(static_cast<TokenId>(
          random_below(key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocab))));
      const bool is_counted = i % 5 != 4 && !(kinds.has_uncounted && s % 7 == 5);
      sample.targets.push_back(is_counted ? (sample.inputs.back() * 7 + 1) % static_cast<TokenId>(vocab)
                                          : kNoTarget);
      sample.positions.push_back(static_cast<std::int32_t>(i));
      sample.num_targets += sample.targets.back() != kNoTarget;
    }
  }
  return result;
}

// The result of a training: losses and norms of the steps, and the whole masters, assembled from all ranks.
struct TrainingResult {
  std::vector<double> losses, norms;
  double evaluated = 0;
  NoiseScale noise{};
  std::map<std::string, std::vector<double>> tensors;
};

inline void collect_tensors(const Parameters& parameters, TrainingResult& learned) {
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

// The settings of a training: the samples and options of each step.
struct TrainingSetup {
  std::function<std::vector<Sample>(std::int64_t first, std::int64_t count)> samples{};
  UpdateOptions update{.learning_rate = 1e-2, .measures_gradient_noise = true};
  int steps = 4;
  int seed = 5;
};

// Trains one rank. Returns its measurements; the caller, which joins the threads, copies its part of the
// tensors into the result.
inline TrainingResult train_rank(const ModelSpec& model, const Plan& plan, int rank, Comm* comm,
                                 const TrainingSetup& setup, Parameters& parameters) {
  parameters.initialize(setup.seed);
  EngineOptions options{.device = test_device(), .seed = 9};
  options.rank = rank, options.comm = comm, options.timeout = Seconds(60);
  Engine engine(plan, model, parameters, options);
  if (comm != nullptr)
    throw_if_failed(comm->connect(0, engine.program().groups, Deadline::after(Seconds(60), "connecting")));
  TrainingResult learned;
  const auto batch = [&](std::int64_t step, std::int64_t first) {
    return make_batch(setup.samples(first, plan.batch), plan, step, first, rank);
  };
  for (int step = 0; step < setup.steps; ++step) {
    const StepReport report = value_or_throw(engine.train_step(batch(step, step * plan.batch), setup.update));
    learned.losses.push_back(report.loss), learned.norms.push_back(report.grad_norm);
  }
  learned.noise = engine.noise;
  learned.evaluated = value_or_throw(engine.evaluate(batch(0, 1000))).loss_sum;
  return learned;
}

inline TrainingResult train(const ModelSpec& model, const Plan& plan, const TrainingSetup& setup) {
  const int size = num_devices(plan);
  if (size == 1) {
    Parameters parameters(plan, model, plan.pipelines[0].stages[0].devices[0], test_device());
    TrainingResult learned = train_rank(model, plan, 0, nullptr, setup, parameters);
    collect_tensors(parameters, learned);
    return learned;
  }
  ThreadWorld world(size);
  std::vector<TrainingResult> ranks(static_cast<std::size_t>(size));
  std::vector<std::string> problems(ranks.size());
  std::vector<std::unique_ptr<Parameters>> parameters(ranks.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      const std::unique_ptr<Comm> comm = world.comm(rank);
      try {
        parameters[at] = std::make_unique<Parameters>(plan, model, rank, test_device());
        ranks[at] = train_rank(model, plan, rank, comm.get(), setup, *parameters[at]);
      } catch (const std::exception& error) {
        problems[at] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t r = 0; r < problems.size(); ++r)
    EXPECT_EQ(problems[r], "") << "rank " << r << " of " << short_text(plan);
  TrainingResult all = ranks[0];
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].losses, all.losses) << "rank " << r;
    EXPECT_EQ(ranks[r].noise, all.noise) << "rank " << r;
    if (parameters[r] != nullptr) collect_tensors(*parameters[r], all);
  }
  return all;
}

inline TrainingResult train(const ModelSpec& model, const Plan& plan, int steps) {
  const auto samples = [&](std::int64_t first, std::int64_t count) {
    return make_samples(first, count, model.vocab);
  };
  return train(model, plan, TrainingSetup{.samples = samples, .steps = steps});
}

// Relative norm of the difference of two tensors.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), size += a[i] * a[i];
  return std::sqrt(difference / std::max(size, 1e-300));
}

// Without RoPE, key biases have no gradient except rounding noise, which Adam normalizes. They are not
// compared.
inline bool is_noise(const ModelSpec& model, const std::string& name) {
  return model.positions != PositionKind::rope && name.find("attention.k.bias") != std::string::npos;
}

inline constexpr double kTolerance = 1e-9;

// Compares losses and norms of the steps, and the resulting tensors.
inline void expect_same_learning(const ModelSpec& model, const Plan& plan, const TrainingResult& one,
                                 const TrainingResult& many) {
  const std::string what = model.name + " " + short_text(plan);
  SCOPED_TRACE(what);
  ASSERT_EQ(one.losses.size(), many.losses.size()) << what;
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(one.losses[i], many.losses[i], kTolerance * one.losses[i]) << what << " step " << i;
    EXPECT_NEAR(one.norms[i], many.norms[i], kTolerance * one.norms[i]) << what << " step " << i;
  }
  for (const auto& [name, values] : one.tensors) {
    const auto found = many.tensors.find(name);
    ASSERT_NE(found, many.tensors.end()) << what << " " << name;
    if (is_noise(model, name)) continue;
    EXPECT_LT(distance(values, found->second), kTolerance) << what << " " << name;
  }
}

// The noise statistics are products of gradients and of moments. Their relative error is that of the
// gradients, with respect to norms that are at most these.
inline void expect_same_noise(const Plan& plan, const TrainingResult& one, const TrainingResult& many) {
  double squares = 0;
  for (const double norm : one.norms) squares += 2 * norm * norm;
  const double most = kTolerance * squares;
  EXPECT_EQ(one.noise.num_steps, many.noise.num_steps) << short_text(plan);
  EXPECT_NEAR(one.noise.gradient, many.noise.gradient, most) << short_text(plan);
  EXPECT_NEAR(one.noise.noise, many.noise.noise, most * static_cast<double>(plan.batch)) << short_text(plan);
}

inline void expect_equal(const ModelSpec& model, const Plan& plan, const TrainingResult& one,
                         const TrainingResult& many) {
  expect_same_learning(model, plan, one, many);
  expect_same_noise(plan, one, many);
  EXPECT_NEAR(one.evaluated, many.evaluated, kTolerance * one.evaluated) << short_text(plan);
}

inline Plan one_device(const ModelSpec& model, std::int64_t batch) {
  return uniform_plan(model, {.microbatch = static_cast<int>(batch),
                              .batch = batch,
                              .sequence_length = kLength,
                              .precision = Precision::fp64});
}

inline void expect_equal_to_one_device(const ModelSpec& model, const Plan& plan, int steps = 4) {
  ASSERT_EQ(find_problem(plan, model), std::nullopt);
  expect_equal(model, plan, train(model, one_device(model, plan.batch), steps), train(model, plan, steps));
}

inline void expect_equal_to_one_device(const ModelSpec& model, const UniformPlan& shape, int steps = 4) {
  UniformPlan wide = shape;
  wide.sequence_length = kLength, wide.precision = Precision::fp64;
  expect_equal_to_one_device(model, uniform_plan(model, wide), steps);
}

}  // namespace optimus
