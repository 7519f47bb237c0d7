// See module_graph.h.
#include "engine/module_graph.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <set>

#include "base/error.h"

namespace optimus {

ModuleForward run_forward(const ModuleModel& model, std::size_t part, const at::Tensor& input,
                          const ForwardOptions& options) {
  const AutogradGuard autograd(options.is_recorded);
  // The leaf needs its own version counter, because the arena around the input changes while the graph waits
  // for its backward pass.
  at::Tensor leaf = input.variable_data();
  leaf.set_requires_grad(options.is_recorded && options.wants_input_gradient);
  at::Tensor output = model.parts[part].forward(leaf);
  if (options.targets.defined()) {
    const bool is_16_bit = at::isReducedFloatingType(output.scalar_type());
    output = model.loss(is_16_bit ? output.to(options.wide) : output, options.targets);
    if (output.numel() != 1)
      throw UserError("{}: loss: expected one element (the sum over samples), got {}", model.name,
                      output.numel());
  }
  ModuleForward result{output.detach(), {}};
  if (!options.is_recorded) return result;
  // Frees the values of the output. Unless an operation saves its output, they are needed only until they are
  // copied to the next block.
  if (output.requires_grad() && !output.is_leaf())
    output.set_data(at::empty({}, output.options()).expand(output.sizes()));
  result.graph = {leaf.requires_grad() ? leaf : at::Tensor(), output};
  return result;
}

ModuleGradients run_backward(ModuleGraph graph, const at::Tensor& gradient,
                             const std::vector<at::Tensor>& parameters) {
  const AutogradGuard autograd(true);
  std::vector<at::Tensor> needed = parameters;
  const bool wants_input = graph.input.defined();
  if (wants_input) needed.push_back(graph.input);
  ModuleGradients result;
  result.parameters.resize(parameters.size());
  if (needed.empty() || !graph.root.requires_grad()) return result;
  result.parameters = torch::autograd::grad(
      {graph.root}, needed, {gradient.reshape(graph.root.sizes()).to(graph.root.scalar_type())}, false, false,
      true);
  if (wants_input) {
    result.input = result.parameters.back();
    result.parameters.pop_back();
  }
  return result;
}

std::vector<std::pair<std::string, at::Tensor>> trained_parameters(const ModulePart& part) {
  std::vector<std::pair<std::string, at::Tensor>> result;
  std::set<const void*> known_tensors;
  if (part.module != nullptr)
    for (const auto& item : part.module->named_parameters())
      if (item.value().requires_grad() && known_tensors.insert(item.value().unsafeGetTensorImpl()).second)
        result.emplace_back(part.name + "." + item.key(), item.value());
  return result;
}

std::vector<at::Tensor> other_tensors(const ModulePart& part) {
  std::vector<at::Tensor> result;
  if (part.module == nullptr) return result;
  for (const at::Tensor& tensor : part.module->parameters())
    if (!tensor.requires_grad()) result.push_back(tensor);
  for (const at::Tensor& tensor : part.module->buffers()) result.push_back(tensor);
  return result;
}

at::Tensor converted(const at::Tensor& tensor, at::ScalarType type, at::Device device) {
  return tensor.to(device, tensor.is_floating_point() ? type : tensor.scalar_type());
}

}  // namespace optimus
