// The expected result of an asynchronous schedule, computed on one device in double precision. The order of
// the stages determines which weights each forward and backward used. Gradients come from the engine on one
// device (PipeDream: forward and backward use the same weights) or from autograd (PipeMare: they differ).
// Read next: asynchronous_test.cpp.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>

#include "engine/equal_training.h"

namespace optimus {

using Values = std::map<std::string, std::vector<double>>;

// The numbers of updates of a stage before each micro-batch's forward and before its backward, in the order
// of the schedule.
struct Counts {
  std::vector<int> before_forward, before_backward;
  int most() const {  // the largest number between the two
    int result = 0;
    for (std::size_t m = 0; m < before_forward.size(); ++m)
      result = std::max(result, before_backward[m] - before_forward[m]);
    return result;
  }
};
inline Counts count_updates(const Plan& plan, std::size_t stage) {
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

inline std::size_t stage_of(const Plan& plan, int block) {
  const std::vector<Stage>& stages = plan.pipelines[0].stages;
  for (std::size_t s = 0; s < stages.size(); ++s)
    if (block < stages[s].chunks[0].end_block()) return s;
  return stages.size();
}

struct Gradient {
  Values sums{};
  double loss_sum = 0;
  std::int64_t num_targets = 0;
};
using Differentiate =
    std::function<Gradient(const Values& forward, const Values& backward, const std::vector<Sample>&,
                           std::int64_t step, std::int64_t first)>;

// Trains on one device, in double precision, with the delays of the stages. Uses only the stages and
// micro-batches of the plan.
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

  TrainingResult train(Values start, const TrainingSetup& setup) {
    learned_.tensors = std::move(start);
    for (int step = 0; step < setup.steps; ++step) train_step(step, setup);
    return std::move(learned_);
  }

 private:
  void train_step(int step, const TrainingSetup& setup) {
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
      Gradient gradient = differentiate_(forward, backward, setup.samples(first, size), step, first);
      first += size;
      losses += gradient.loss_sum, counted += gradient.num_targets;
      if (gradient.num_targets > 0) {
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

  // AdamW on the newest weights. Returns the squared norm of the mean gradient.
  double update(const Gradient& gradient) {
    const double k = num_updates_++;
    double squares = 0;
    for (const LogicalTensor& tensor : tensors_) {
      const int delay = counts_[stage_of(plan_, tensor.block)].most();
      double rate = update_.learning_rate;
      if (const auto all = static_cast<double>(update_.pipemare.num_warmup_updates); all > 0)
        rate /= std::pow(1 + delay, 1 - std::min(k / all, 1.0));
      std::vector<double>&weights = learned_.tensors.at(tensor.name), &first = first_[tensor.name],
      &second = second_[tensor.name], &velocity = velocities_[tensor.name];
      first.resize(weights.size()), second.resize(weights.size()), velocity.resize(weights.size());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double g = gradient.sums.at(tensor.name)[i] / static_cast<double>(gradient.num_targets),
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
  TrainingResult learned_;
  std::vector<Values> versions_;  // of the step, by number of updates
  Values first_, second_, velocities_;
  double num_updates_ = 0;
};

// The engine on one device; its backward uses the weights of its forward.
class OneDevice {
 public:
  explicit OneDevice(const ModelSpec& model) : model_(model) {}

  Gradient operator()(const Values& weights, const std::vector<Sample>& samples, std::int64_t step,
                      std::int64_t first) {
    const auto size = static_cast<int>(samples.size());
    std::unique_ptr<OneDeviceEngine>& made = engines_[size];
    if (made == nullptr) made = std::make_unique<OneDeviceEngine>(model_, size);
    for (const auto& [name, values] : weights) made->parameters.set(name, std::span<const double>(values));
    const StepReport report = value_or_throw(made->engine.train_step(
        make_batch(samples, made->plan, step, first), {.learning_rate = 0, .clip = 0}));
    Gradient result{.loss_sum = report.loss * static_cast<double>(report.num_targets),
                    .num_targets = report.num_targets};
    for (const auto& [name, values] : weights)
      result.sums[name] = made->parameters.get(name, &BlockState::gradients);
    return result;
  }

 private:
  struct OneDeviceEngine {
    OneDeviceEngine(const ModelSpec& model, int size)
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
  std::map<int, std::unique_ptr<OneDeviceEngine>> engines_;  // by number of sequences
};

// GPT-2 by autograd, without dropout and padding. Values are computed with the forward's weights, and
// gradients flow through the backward's: each use of a weight is the backward's weight plus a constant that
// makes up the difference.
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
      result.loss_sum += loss.item<double>(), result.num_targets += sample.num_targets;
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
    const at::Tensor centered = x - x.mean(-1, true);
    const at::Tensor unit = centered * (centered.square().mean(-1, true) + model_.norm_eps).rsqrt();
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

}  // namespace optimus
