// Asynchronous schedules learn what one device learns that follows their delays: PipeDream's gradients are those of the weights
// that each stage's forward used, PipeMare's those of a forward with old and a backward with newer, corrected weights, and each is
// applied to the newest. fp64, so that nothing but the order of sums is left: weights agree within 1e-9 of their tensor's norm.
//
// And what PipeMare is for: with long steps it learns text that plain delay does not learn as well.
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/random.h"
#include "comm/thread_comm.h"
#include "engine/engine.h"
#include "engine/test_device.h"
#include "model/open.h"
#include "plan/describe.h"
#include "plan/validate.h"

namespace optimus {
namespace {

constexpr std::int64_t kLength = 12;
constexpr int kSteps = 3;
constexpr UpdateOptions kUpdate{.learning_rate = 1e-2, .clip = 0, .pipemare = {.decay = 0}};

bool is_long() { return std::getenv("OPTIMUS_LONG") != nullptr; }

using Values = std::map<std::string, std::vector<double>>;

ModelSpec model_of(const std::string& preset, int layers, double dropout, bool is_tied = false) {
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

// Of different lengths where there may be padding; one in seven has nothing that counts.
std::vector<Sample> samples_of(std::int64_t first, std::int64_t count, std::int64_t vocab, bool is_padded) {
  std::vector<Sample> result;
  for (std::int64_t s = first; s < first + count; ++s) {
    const std::int64_t length = is_padded && s % 3 == 2 ? 9 : kLength;
    Sample& sample = result.emplace_back();
    const RandomKey key = RandomKey(3).with(static_cast<std::uint64_t>(s));
    for (std::int64_t i = 0; i < length; ++i) {
      sample.inputs.push_back(static_cast<TokenId>(
          random_below(key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocab))));
      const bool is_counted = i % 5 != 4 && s % 7 != 5;
      sample.targets.push_back(is_counted ? (sample.inputs.back() * 7 + 1) % static_cast<TokenId>(vocab)
                                          : kNoTarget);
      sample.positions.push_back(static_cast<std::int32_t>(i));
      sample.num_counted += is_counted;
    }
  }
  return result;
}

struct Learned {
  std::vector<double> losses, norms;
  double evaluated = 0;
  Values tensors;
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

// What a rank trains with: the samples of a step, and what to do in it.
struct Course {
  std::function<std::vector<Sample>(std::int64_t first, std::int64_t count)> samples{};
  UpdateOptions update{};
  int steps = kSteps;
  int seed = 5;
};

Learned train_rank(const ModelSpec& model, const Plan& plan, Comm& comm, const Course& course,
                   Parameters& parameters) {
  parameters.initialize(course.seed);
  EngineOptions options{.device = test_device(), .seed = 9};
  options.rank = comm.rank(), options.comm = &comm, options.patience = Seconds(60);
  Engine engine(plan, model, parameters, options);
  done_or_throw(comm.connect(0, engine.groups(), Deadline::after(Seconds(60), "connecting")));
  Learned learned;
  const auto batch = [&](std::int64_t step, std::int64_t first) {
    return make_batch(course.samples(first, plan.batch), plan, step, first, comm.rank());
  };
  for (int step = 0; step < course.steps; ++step) {
    const StepReport report =
        value_or_throw(engine.train_step(batch(step, step * plan.batch), course.update));
    learned.losses.push_back(report.loss), learned.norms.push_back(report.grad_norm);
  }
  learned.evaluated = value_or_throw(engine.evaluate(batch(0, 1000))).loss_sum;
  return learned;
}

Learned train(const ModelSpec& model, const Plan& plan, const Course& course) {
  const int size = num_devices(plan);
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
        ranks[at] = train_rank(model, plan, *comm, course, *parameters[at]);
      } catch (const std::exception& error) {
        problems[at] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  Learned all = ranks[0];
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(problems[r], "") << "rank " << r << " of " << short_text(plan);
    EXPECT_EQ(ranks[r].losses, all.losses) << "rank " << r;
    if (parameters[r] != nullptr) put(*parameters[r], all);
  }
  return all;
}

// Updates of a stage before each micro-batch's forward and before its backward, counted in its order.
struct Counts {
  std::vector<int> before_forward, before_backward;
  int most() const {  // between the two
    int result = 0;
    for (std::size_t m = 0; m < before_forward.size(); ++m)
      result = std::max(result, before_backward[m] - before_forward[m]);
    return result;
  }
};
Counts count_updates(const Plan& plan, std::size_t stage) {
  const Pipeline& pipeline = plan.pipelines[0];
  const auto num = static_cast<int>(pipeline.microbatches.size());
  Counts counts{std::vector<int>(pipeline.microbatches.size()),
                std::vector<int>(pipeline.microbatches.size())};
  int updates = 0;
  for (const Slot& slot :
       asynchronous({static_cast<int>(stage), static_cast<int>(pipeline.stages.size()), num})) {
    const auto m = static_cast<std::size_t>(slot.microbatch);
    if (slot.work == Work::forward) counts.before_forward[m] = updates;
    if (slot.work == Work::backward) counts.before_backward[m] = updates;
    updates += slot.work == Work::update;
  }
  return counts;
}

std::size_t stage_of(const Plan& plan, int block) {
  const std::vector<Stage>& stages = plan.pipelines[0].stages;
  for (std::size_t s = 0; s < stages.size(); ++s)
    if (block < stages[s].chunks[0].end()) return s;
  return stages.size();
}

struct Gradient {
  Values sums{};
  double loss_sum = 0;
  std::int64_t num_counted = 0;
};
using Differentiate =
    std::function<Gradient(const Values& forward, const Values& backward, const std::vector<Sample>&,
                           std::int64_t step, std::int64_t first)>;

// One device, in plain double, that follows the stages' orders. Reads nothing of the plan but stages and micro-batches.
class Reference {
 public:
  Reference(const ModelSpec& model, const Plan& plan, const UpdateOptions& update,
            Differentiate differentiate)
      : plan_(plan),
        update_(update),
        differentiate_(std::move(differentiate)),
        tensors_(logical_tensors(model)) {
    for (std::size_t s = 0; s < plan.pipelines[0].stages.size(); ++s)
      counts_.push_back(count_updates(plan, s));
  }

  Learned train(Values start, const Course& course) {
    learned_.tensors = std::move(start);
    for (int step = 0; step < course.steps; ++step) train_step(step, course);
    return std::move(learned_);
  }

 private:
  void train_step(int step, const Course& course) {
    versions_ = {learned_.tensors};
    double losses = 0, squares = 0;
    std::int64_t counted = 0, first = step * plan_.batch;
    int num_updates = 0;
    for (std::size_t m = 0; m < plan_.pipelines[0].microbatches.size(); ++m) {
      const int size = plan_.pipelines[0].microbatches[m];
      Values forward, backward;
      for (const LogicalTensor& tensor : tensors_) {
        const Counts& counts = counts_[stage_of(plan_, tensor.block)];
        forward[tensor.name] = version(counts.before_forward[m]).at(tensor.name);
        backward[tensor.name] =
            plan_.schedule == Schedule::pipedream ? forward[tensor.name] : corrected(tensor, m);
      }
      Gradient gradient = differentiate_(forward, backward, course.samples(first, size), step, first);
      first += size;
      losses += gradient.loss_sum, counted += gradient.num_counted;
      if (gradient.num_counted > 0) {
        ++num_updates;
        squares += update(gradient);
      }
      versions_.push_back(learned_.tensors);
    }
    learned_.losses.push_back(losses / static_cast<double>(counted));
    learned_.norms.push_back(std::sqrt(squares / num_updates));
  }

  const Values& version(int number) const { return versions_[static_cast<std::size_t>(number)]; }

  // w - (updates between forward and backward) * velocity
  std::vector<double> corrected(const LogicalTensor& tensor, std::size_t m) {
    const Counts& counts = counts_[stage_of(plan_, tensor.block)];
    std::vector<double> weights = version(counts.before_backward[m]).at(tensor.name);
    if (update_.pipemare.decay == 0) return weights;
    std::vector<double>& velocity = velocities_[tensor.name];
    velocity.resize(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] -= (counts.before_backward[m] - counts.before_forward[m]) * velocity[i];
    return weights;
  }

  // AdamW on the newest weights. Returns the square of the mean gradient's norm.
  double update(const Gradient& gradient) {
    const double k = num_updates_++;
    double squares = 0;
    for (const LogicalTensor& tensor : tensors_) {
      const int delay = counts_[stage_of(plan_, tensor.block)].most();
      double rate = update_.learning_rate;
      if (const auto all = static_cast<double>(update_.pipemare.num_rescheduled); all > 0)
        rate /= std::pow(1 + delay, 1 - std::min(k / all, 1.0));
      std::vector<double>&weights = learned_.tensors.at(tensor.name), &first = first_[tensor.name],
      &second = second_[tensor.name], &velocity = velocities_[tensor.name];
      first.resize(weights.size()), second.resize(weights.size()), velocity.resize(weights.size());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double g = gradient.sums.at(tensor.name)[i] / static_cast<double>(gradient.num_counted),
                     before = weights[i];
        squares += g * g;
        first[i] = update_.beta1 * first[i] + (1 - update_.beta1) * g;
        second[i] = update_.beta2 * second[i] + (1 - update_.beta2) * g * g;
        if (tensor.has_weight_decay) weights[i] -= rate * update_.weight_decay * weights[i];
        weights[i] -= rate * (first[i] / (1 - std::pow(update_.beta1, k + 1))) /
                      (std::sqrt(second[i] / (1 - std::pow(update_.beta2, k + 1))) + update_.epsilon);
        if (delay == 0 || update_.pipemare.decay == 0) continue;
        const double left = std::pow(update_.pipemare.decay, 1.0 / delay);
        velocity[i] = left * velocity[i] + (1 - left) * (weights[i] - before);
      }
    }
    return squares;
  }

  const Plan& plan_;
  const UpdateOptions update_;
  const Differentiate differentiate_;
  const std::vector<LogicalTensor> tensors_;
  std::vector<Counts> counts_;  // [stage]
  Learned learned_;
  std::vector<Values> versions_;  // of the step, by the number of updates
  Values first_, second_, velocities_;
  double num_updates_ = 0;
};

// The engine on one device; its backward has the weights of its forward.
class OneDevice {
 public:
  explicit OneDevice(const ModelSpec& model) : model_(model) {}

  Gradient operator()(const Values& weights, const std::vector<Sample>& samples, std::int64_t step,
                      std::int64_t first) {
    const auto size = static_cast<int>(samples.size());
    std::unique_ptr<Made>& made = made_[size];
    if (made == nullptr) made = std::make_unique<Made>(model_, size);
    for (const auto& [name, values] : weights) made->parameters.set(name, std::span<const double>(values));
    const StepReport report = value_or_throw(made->engine.train_step(
        make_batch(samples, made->plan, step, first), {.learning_rate = 0, .clip = 0}));
    Gradient result{.loss_sum = report.loss * static_cast<double>(report.num_counted),
                    .num_counted = report.num_counted};
    for (const auto& [name, values] : weights)
      result.sums[name] = made->parameters.get(name, &BlockState::gradients);
    return result;
  }

 private:
  struct Made {
    Made(const ModelSpec& model, int size)
        : plan(uniform_plan(
              model,
              {.microbatch = size, .batch = size, .sequence_length = kLength, .precision = Precision::fp64})),
          parameters(plan, model, 0, test_device()),
          engine(plan, model, parameters, {.device = test_device(), .seed = 9}) {}
    Plan plan;
    Parameters parameters;
    Engine engine;
  };
  const ModelSpec model_;
  std::map<int, std::unique_ptr<Made>> made_;  // by sequences
};

// GPT-2 by autograd, without dropout and padding. Values are those of the forward's weights, gradients pass through the backward's:
// each use of a weight is the backward's plus the constant that is missing.
class TwoWeights {
 public:
  TwoWeights(const ModelSpec& model, const Values& forward, const Values& backward) : model_(model) {
    for (const LogicalTensor& tensor : logical_tensors(model)) {
      std::vector<std::int64_t> sizes;
      for (int d = 0; d < tensor.shape.num_dims; ++d) sizes.push_back(tensor.shape[d]);
      const auto of = [&](const Values& values) {
        return at::from_blob(const_cast<double*>(values.at(tensor.name).data()), sizes, at::kDouble).clone();
      };
      gaps_[tensor.name] = of(forward) - of(backward);
      leaves_[tensor.name] = of(backward).requires_grad_();
    }
  }

  Gradient gradient(const std::vector<Sample>& samples) {
    Gradient result;
    for (const Sample& sample : samples) {
      const at::Tensor loss = loss_of(sample);
      loss.backward();
      result.loss_sum += loss.item<double>(), result.num_counted += sample.num_counted;
    }
    for (const auto& [name, leaf] : leaves_) {
      const at::Tensor sums = leaf.grad().contiguous();
      result.sums[name].assign(sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel());
    }
    return result;
  }

 private:
  at::Tensor loss_of(const Sample& sample) const {
    const std::vector<std::int64_t> ids(sample.inputs.begin(), sample.inputs.end()),
        places(sample.positions.begin(), sample.positions.end());
    at::Tensor x = rows("embedding.words.weight", ids) + rows("embedding.positions.weight", places);
    for (std::int64_t layer = 0; layer < model_.layers; ++layer) {
      const std::string of = "layers." + std::to_string(layer) + ".";
      x = x + attention(norm(x, of + "norm1"), of + "attention.");
      x = x + linear(at::gelu(linear(norm(x, of + "norm2"), of + "mlp.up"), "tanh"), of + "mlp.down");
    }
    const at::Tensor scores = product(norm(x, "head.norm"), "head.output.weight").log_softmax(-1);
    at::Tensor loss = scores.sum() * 0;
    for (std::size_t i = 0; i < sample.targets.size(); ++i)
      if (sample.targets[i] != kNoTarget)
        loss = loss - scores[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(sample.targets[i])];
    return loss;
  }
  at::Tensor attention(const at::Tensor& x, const std::string& of) const {
    const auto heads = [&](const char* name) {  // [heads, length, head_dim]
      return linear(x, of + name).view({x.size(0), model_.heads, model_.head_dim}).transpose(0, 1);
    };
    const at::Tensor scores =
        heads("q").matmul(heads("k").transpose(1, 2)) / std::sqrt(static_cast<double>(model_.head_dim));
    const at::Tensor later = at::ones({x.size(0), x.size(0)}, at::kBool).triu(1);
    const at::Tensor attended = scores.masked_fill(later, -INFINITY).softmax(-1).matmul(heads("v"));
    return linear(attended.transpose(0, 1).reshape({x.size(0), -1}), of + "out");
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor centred = x - x.mean(-1, true);
    const at::Tensor unit = centred * (centred.square().mean(-1, true) + model_.norm_eps).rsqrt();
    return unit * leaf(name + ".weight") + unit.detach() * gap(name + ".weight") + constant(name + ".bias");
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    return product(x, name + ".weight") + constant(name + ".bias");
  }
  at::Tensor product(const at::Tensor& x, const std::string& name) const {
    return x.matmul(leaf(name).t()) + x.detach().matmul(gap(name).t());
  }
  at::Tensor rows(const std::string& name, std::vector<std::int64_t> numbers) const {
    const at::Tensor at = at::from_blob(numbers.data(), {std::ssize(numbers)}, at::kLong).clone();
    return constant(name).index_select(0, at);
  }
  at::Tensor constant(const std::string& name) const { return leaf(name) + gap(name); }
  const at::Tensor& leaf(const std::string& name) const { return leaves_.at(name); }
  const at::Tensor& gap(const std::string& name) const { return gaps_.at(name); }

  const ModelSpec& model_;
  std::map<std::string, at::Tensor> leaves_, gaps_;
};

Values initial(const ModelSpec& model) {
  const Plan plan = uniform_plan(model, {.sequence_length = kLength, .precision = Precision::fp64});
  Parameters parameters(plan, model, 0, test_device());
  parameters.initialize(Course{}.seed);
  Values values;
  for (const LogicalTensor& tensor : parameters.tensors())
    values[tensor.name] = parameters.get(tensor.name, &BlockState::masters);
  return values;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), size += a[i] * a[i];
  return std::sqrt(difference / std::max(size, 1e-300));
}

void expect_equal(const ModelSpec& model, const Plan& plan, const Learned& expected, const Learned& learned) {
  constexpr double kTolerance = 1e-9;
  SCOPED_TRACE(model.name + " " + short_text(plan));
  ASSERT_EQ(expected.losses.size(), learned.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(expected.losses[i], learned.losses[i], kTolerance * expected.losses[i]) << "step " << i;
    EXPECT_NEAR(expected.norms[i], learned.norms[i], kTolerance * expected.norms[i]) << "step " << i;
  }
  for (const auto& [name, values] : expected.tensors) {
    // Key biases without RoPE have no gradient but rounding noise, which Adam normalizes.
    if (model.positions != PositionKind::rope && name.find("attention.k.bias") != std::string::npos) continue;
    ASSERT_TRUE(learned.tensors.contains(name)) << name;
    EXPECT_LT(distance(values, learned.tensors.at(name)), kTolerance) << name;
  }
}

Plan plan_of(const ModelSpec& model, UniformPlan shape, Schedule schedule) {
  shape.sequence_length = kLength, shape.precision = Precision::fp64, shape.schedule = schedule;
  return uniform_plan(model, shape);
}

void expect_as_reference(const ModelSpec& model, const Plan& plan, const UpdateOptions& update,
                         bool is_padded, const Differentiate& differentiate) {
  ASSERT_EQ(problem_in(plan, model), std::nullopt);
  const Course course{[&](std::int64_t first, std::int64_t count) {
                        return samples_of(first, count, model.vocab, is_padded);
                      },
                      update};
  Reference reference(model, plan, update, differentiate);
  expect_equal(model, plan, reference.train(initial(model), course), train(model, plan, course));
}

void expect_pipedream_as_reference(const ModelSpec& model, const UniformPlan& shape) {
  OneDevice one(model);
  expect_as_reference(
      model, plan_of(model, shape, Schedule::pipedream), kUpdate, true,
      [&](const Values& forward, const Values&, const std::vector<Sample>& samples, std::int64_t step,
          std::int64_t first) { return one(forward, samples, step, first); });
}

TEST(Asynchronous, PipeDreamIsDelayedGradients) {
  for (const char* preset : {"gpt2", "llama3-8b"})
    for (const int pp : {2, 3, 4})
      for (const int tp : {1, 2})
        for (const int dp : {1, 2}) {
          const bool is_turn = (tp == dp) == (preset == std::string("gpt2"));
          if (pp * tp * dp > 8 || !(is_turn || is_long())) continue;
          UniformPlan shape{.pp = pp, .dp = dp, .microbatch = 1, .batch = 7};
          shape.strategy.tp = tp, shape.strategy.zero = dp - 1;
          shape.strategy.sequence_parallel = tp == 2 && pp == 3;
          if (pp == 2) shape.strategy.recompute = dp == 1 ? RecomputeMode::full : RecomputeMode::selective;
          expect_pipedream_as_reference(model_of(preset, 4, 0.1), shape);
        }
}

// More stages than micro-batches, and one stage, whose embedding may be tied.
TEST(Asynchronous, PipeDreamOfFewMicrobatchesAndOfOneStage) {
  expect_pipedream_as_reference(model_of("gpt2", 4, 0.1), {.pp = 5, .microbatch = 3, .batch = 8});
  expect_pipedream_as_reference(model_of("gpt2", 2, 0.1, true), {.dp = 2, .microbatch = 1, .batch = 6});
}

TEST(Asynchronous, PipeDreamWithContextParallelism) {
  UniformPlan shape{.pp = 3, .microbatch = 1, .batch = 5};
  shape.strategy.cp = 2, shape.strategy.zero = 1;
  expect_pipedream_as_reference(model_of("llama3-8b", 3, 0.1), shape);
}

TEST(Asynchronous, PipeMareIsOldForwardAndCorrectedBackward) {
  const PipeMareOptions settings[] = {{.decay = 0}, {.decay = 0.2, .num_rescheduled = 8}};
  for (const PipeMareOptions& options : settings)
    for (const int pp : {2, 3, 4})
      for (const int dp : {1, 2}) {
        const ModelSpec model = model_of("gpt2", 4, 0);
        UniformPlan shape{.pp = pp, .dp = dp, .microbatch = 1, .batch = 7};
        shape.strategy.tp = pp == 3 ? 2 : 1, shape.strategy.zero = dp - 1;
        const bool is_turn = (dp == 1) == (options.decay == 0 || pp == 3);
        if (pp * dp * shape.strategy.tp > 8 || !(is_turn || is_long())) continue;
        UpdateOptions update = kUpdate;
        update.pipemare = options;
        expect_as_reference(model, plan_of(model, shape, Schedule::pipemare), update, false,
                            [&](const Values& forward, const Values& backward,
                                const std::vector<Sample>& samples, std::int64_t, std::int64_t) {
                              return TwoWeights(model, forward, backward).gradient(samples);
                            });
      }
}

// The two references agree where they can be compared.
TEST(Asynchronous, AutogradAgreesWithOneDevice) {
  const ModelSpec model = model_of("gpt2", 2, 0);
  const Values weights = initial(model);
  const std::vector<Sample> samples = samples_of(0, 3, model.vocab, false);
  const Gradient one = OneDevice(model)(weights, samples, 0, 0),
                 two = TwoWeights(model, weights, weights).gradient(samples);
  EXPECT_NEAR(one.loss_sum, two.loss_sum, 1e-12 * one.loss_sum);
  EXPECT_EQ(one.num_counted, two.num_counted);
  for (const auto& [name, sums] : one.sums) {
    if (name.find("attention.k.bias") != std::string::npos) continue;  // noise
    EXPECT_LT(distance(sums, two.sums.at(name)), 1e-10) << name;
  }
}

TEST(Asynchronous, ClippingIsRefused) {
  const ModelSpec model = model_of("gpt2", 2, 0);
  const Plan plan = plan_of(model, {}, Schedule::pipedream);
  Parameters parameters(plan, model, 0, test_device());
  Engine engine(plan, model, parameters, {.device = test_device()});
  const Batch batch = make_batch(samples_of(0, 1, model.vocab, false), plan, 0, 0);
  try {
    (void)engine.train_step(batch, {.learning_rate = 1e-2, .clip = 1});
    FAIL() << "it was not";
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "clip 1: schedule pipedream updates stages at different times and knows no norm of them all, use 0");
  }
}

// Text in bytes, real enough: this project's README.
std::vector<Sample> text_samples(const std::string& text, std::int64_t first, std::int64_t count,
                                 std::int64_t length, std::uint64_t seed) {
  std::vector<Sample> result;
  for (std::int64_t s = first; s < first + count; ++s) {
    const std::uint64_t at = random_below(RandomKey(seed).with("text"), static_cast<std::uint64_t>(s),
                                          text.size() - static_cast<std::size_t>(length) - 1);
    Sample& sample = result.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      sample.inputs.push_back(static_cast<unsigned char>(text[at + static_cast<std::size_t>(i)]));
      sample.targets.push_back(static_cast<unsigned char>(text[at + static_cast<std::size_t>(i) + 1]));
      sample.positions.push_back(static_cast<std::int32_t>(i));
    }
    sample.num_counted = length;
  }
  return result;
}

// Of pieces of the text that were drawn for nothing else.
double loss_behind(const ModelSpec& model, const Plan& plan, const std::string& text, int seed,
                   const PipeMareOptions& options) {
  const Course course{.samples =
                          [&](std::int64_t first, std::int64_t count) {
                            return text_samples(text, first, count, plan.sequence_length,
                                                static_cast<std::uint64_t>(seed));
                          },
                      .update = {.learning_rate = 5e-3, .weight_decay = 0, .clip = 0, .pipemare = options},
                      .steps = 12,
                      .seed = seed};
  return train(model, plan, course).evaluated / static_cast<double>(plan.batch * plan.sequence_length);
}

// 384 updates without warm-up, with a rate at which the first stages' delay of 3 updates hurts. Single trainings differ by their
// seed about as much as the two ways do: of seeds 1 to 9 PipeMare was behind with one and level with another, and ahead by 0.13 in
// the mean, with a deviation of the mean of 0.04. So the mean is looked at, for three deviations less than that.
TEST(Asynchronous, PipeMareLearnsWherePlainDelayDoesWorse) {
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
    const double plain = loss_behind(model, plan, text, seed, {.decay = 0}),
                 corrected = loss_behind(model, plan, text, seed, {.num_rescheduled = 384});
    std::printf("seed %d: loss %.3f with plain delay, %.3f with PipeMare\n", seed, plain, corrected);
    gap += (plain - corrected) / num_seeds;
    EXPECT_LT(corrected, 4) << "seed " << seed;  // it began at 5.5
  }
  if (is_long()) {
    EXPECT_GT(gap, 0.01);
  }
}

}  // namespace
}  // namespace optimus
