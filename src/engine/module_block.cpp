// See module_block.h.
#include "engine/module_block.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <map>

#include "base/error.h"
#include "data/permutation.h"
#include "engine/module_graph.h"

namespace optimus {
namespace {

std::vector<std::int64_t> with_samples(std::int64_t samples, std::vector<std::int64_t> shape) {
  shape.insert(shape.begin(), samples);
  return shape;
}

// Autograd computes the gradients of the input and the weights together. The input-gradient instruction
// computes both and passes the weight gradients to the weight-gradient instruction, which follows it and
// accumulates them. The first block has only a weight-gradient instruction, which then does both.
class ModuleBlock final : public Block {
 public:
  ModuleBlock(const ModuleModel& model, const ModuleDescription& description, int block,
              RecomputeMode recompute)
      : model_(model),
        description_(description),
        part_(static_cast<std::size_t>(block)),
        is_first_(block == 0),
        is_last_(part_ + 1 == model.parts.size()),
        is_recomputed_(recompute == RecomputeMode::full && !is_last_) {
    for (const auto& [name, parameter] : trained_parameters(model.parts[part_])) {
      names_.push_back(name);
      parameters_.push_back(parameter);
    }
  }

  void forward(Part, const Pass& pass) override {
    const std::int64_t samples = std::ssize(pass.microbatch->host->samples);
    use_weights(pass);
    at::Tensor input = pass["input"];
    if (is_first_ && !pass.is_recompute) input.copy_(pass.microbatch->host->inputs.reshape({samples, -1}));
    ForwardOptions options{.wants_input_gradient = !is_first_, .wide = description_.types.wide};
    options.is_recorded = pass.gradient_scale != 0 && (pass.is_recompute || !is_recomputed_);
    if (is_last_) options.targets = pass.microbatch->host->labels.to(input.device());
    ModuleForward result = run_forward(
        model_, part_, input.view(with_samples(samples, description_.input_shapes[part_])), options);
    if (is_last_)
      pass.loss->add_(result.output.reshape({1}).to(at::kDouble));
    else if (!pass.is_recompute)
      copy_to_next_block(result.output, *pass.next_input);
    if (options.is_recorded) graphs_[pass.microbatch] = std::move(result.graph);
  }

  void backward_input(Part, const Pass& pass) override {
    const ModuleGradients& gradients = backward(pass);
    at::Tensor input_gradient = *pass.input_gradient;
    if (gradients.input.defined())
      input_gradient.copy_(gradients.input.reshape(input_gradient.sizes()));
    else
      input_gradient.zero_();
  }

  void backward_weight(Part, const Pass& pass) override {
    if (is_first_) backward(pass);
    const auto match = gradients_.find(pass.microbatch);
    ensure(match != gradients_.end(), "weight gradients of {} requested before its backward pass",
           model_.parts[part_].name);
    for (std::size_t i = 0; i < names_.size(); ++i)
      if (const at::Tensor& gradient = match->second.parameters[i]; gradient.defined())
        (*pass.weights)[names_[i]].gradient.view(gradient.sizes()).add_(gradient);
    gradients_.erase(match);
  }

 private:
  const ModuleGradients& backward(const Pass& pass) {
    const auto at = graphs_.find(pass.microbatch);
    ensure(at != graphs_.end(), "{} has no autograd graph for its backward pass", model_.parts[part_].name);
    use_weights(pass);
    ModuleGraph graph = std::move(at->second);
    graphs_.erase(at);
    const at::Tensor gradient = is_last_
                                    ? at::full(graph.root.sizes(), pass.gradient_scale, graph.root.options())
                                    : pass["output.gradient"];
    return gradients_[pass.microbatch] = run_backward(std::move(graph), gradient, parameters_);
  }

  // With ZeRO 3, weights are gathered for each use and their addresses change.
  void use_weights(const Pass& pass) {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const at::Tensor& weight = (*pass.weights)[names_[i]].weight;
      if (weight.defined() && weight.data_ptr() != parameters_[i].data_ptr())
        parameters_[i].set_data(weight.view(parameters_[i].sizes()));
    }
  }

  void copy_to_next_block(const at::Tensor& output, at::Tensor next_input) const {
    if (output.numel() != next_input.numel())
      throw UserError("{}: part {} returned {} elements for {} samples, expected {} as in its trial run",
                      model_.name, model_.parts[part_].name, output.numel(), next_input.size(0),
                      next_input.numel());
    next_input.copy_(output.reshape(next_input.sizes()));
  }

  const ModuleModel& model_;
  const ModuleDescription& description_;
  const std::size_t part_;
  const bool is_first_, is_last_, is_recomputed_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;  // parameters of the module
  std::map<const DeviceMicrobatch*, ModuleGraph> graphs_;
  std::map<const DeviceMicrobatch*, ModuleGradients> gradients_;
};

}  // namespace

ModuleModel copy_of(const ModuleModel& model) {
  ModuleModel result = model;
  for (ModulePart& part : result.parts) {
    if (part.module == nullptr) continue;
    if (part.copy == nullptr)
      throw UserError(
          "{}: part {} cannot be copied, but a run on several devices needs a copy for each; add the part "
          "with "
          "ModuleModel::add, or set its `copy`",
          model.name, part.name);
    try {
      part = part.copy();
    } catch (const c10::Error& error) {
      throw UserError("{}: part {} cannot be copied for several devices: {}", model.name, part.name,
                      error.what_without_backtrace());
    }
  }
  return result;
}

// A tensor of a module, its original value, and the name of the parameter of which it is now a view. The name
// is empty if the tensor was only converted.
struct ModuleBinding::BoundTensor {
  at::Tensor tensor, original;
  std::string parameter;
};

void set_values(const ModuleModel& model, Parameters& parameters) {
  for (const ModulePart& part : model.parts)
    for (const auto& [name, tensor] : trained_parameters(part)) {
      const at::Tensor values = tensor.variable_data().to(at::kCPU, at::kDouble).contiguous();
      parameters.set(name,
                     std::span(values.const_data_ptr<double>(), static_cast<std::size_t>(values.numel())));
    }
}

ModuleBinding::ModuleBinding(const ModuleModel& model, const ModuleDescription& description,
                             Parameters& parameters)
    : parameters_(parameters) {
  for (const ModulePart& part : model.parts) {
    for (const auto& [name, tensor] : trained_parameters(part)) {
      bound_tensors_.push_back({tensor, tensor.variable_data(), name});
      if (const at::Tensor weight = parameters.weight(name); weight.numel() == tensor.numel())
        tensor.set_data(weight.view(tensor.sizes()));
    }
    for (const at::Tensor& tensor : other_tensors(part)) {
      bound_tensors_.push_back({tensor, tensor.variable_data(), ""});
      tensor.set_data(converted(tensor.variable_data(), description.types.element, description.device));
    }
  }
}

// Copies the parameter's value back to the module. Uses the master if this device has all of it, otherwise
// the weight if the device has all of it, otherwise only the rows of the device's shard.
void ModuleBinding::restore_tensor(BoundTensor& binding) const {
  if (parameters_.find(binding.parameter) == nullptr) return;  // another stage trains it
  const at::Tensor master = parameters_.master(binding.parameter),
                   weight = parameters_.weight(binding.parameter);
  const std::int64_t num_elements = binding.original.numel();
  if (master.numel() == num_elements || weight.numel() == num_elements) {
    binding.original.copy_((master.numel() == num_elements ? master : weight).view(binding.original.sizes()));
    return;
  }
  const Span rows = parameters_.box(binding.parameter, &BlockState::masters)[0];
  if (rows.size() > 0)
    binding.original.view({-1, master.numel() / rows.size()})
        .narrow(0, rows.begin, rows.size())
        .copy_(master.view({rows.size(), -1}));
}

ModuleBinding::~ModuleBinding() {
  for (BoundTensor& binding : bound_tensors_) {
    if (!binding.parameter.empty()) restore_tensor(binding);
    binding.tensor.set_data(binding.original);
  }
}

std::function<std::unique_ptr<Block>(int, RecomputeMode)> module_blocks(
    const ModuleModel& model, const ModuleDescription& description) {
  return [&model, &description](int block, RecomputeMode mode) {
    return std::make_unique<ModuleBlock>(model, description, block, mode);
  };
}

Batch read_batch(const ModuleData& data, const ModuleDescription& description, const Plan& plan,
                 std::int64_t step, std::int64_t first_sample, std::int64_t seed, int device) {
  Batch batch;
  batch.step = step, batch.sequence_length = 1;
  const RandomKey key = RandomKey(static_cast<std::uint64_t>(seed)).derive("epoch");
  const PlanLocation location = location_of(plan, device);
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(location.pipeline)];
  const Stage& stage = pipeline.stages[static_cast<std::size_t>(location.stage)];
  // Stages without the first or the last part need neither inputs nor targets.
  const bool needs_samples =
      stage.chunks.front().first_block() == 0 || stage.chunks.back().end_block() == plan.num_blocks;
  std::int64_t position = first_sample + num_sequences_before(plan, location.pipeline);
  for (const int size : pipeline.microbatches) {
    Microbatch& microbatch = batch.microbatches.emplace_back();
    std::vector<at::Tensor> inputs, labels;
    const Span own_samples = share_of(splits_of(stage).front(), location.index, size, 1, false).samples;
    for (int i = 0; i < size; ++i, ++position) {
      if (i < own_samples.begin || i >= own_samples.end) continue;
      microbatch.samples.push_back(position);
      if (!needs_samples) continue;
      const Permutation order(key.derive(static_cast<std::uint64_t>(position / data.num_samples)),
                              data.num_samples);
      const std::int64_t sample_index = order(position % data.num_samples);
      const ModuleSample sample = data.read(sample_index);
      if (sample.input.sizes() != at::IntArrayRef(description.input_shapes.front()) ||
          sample.target.sizes() != at::IntArrayRef(description.target_shape))
        throw UserError("all samples must have the same shapes, but sample {} differs from sample 0",
                        sample_index);
      inputs.push_back(sample.input), labels.push_back(sample.target);
    }
    batch.num_tokens += own_samples.size(), batch.num_targets += own_samples.size();
    if (!inputs.empty()) microbatch.inputs = at::stack(inputs), microbatch.labels = at::stack(labels);
  }
  return batch;
}

}  // namespace optimus
