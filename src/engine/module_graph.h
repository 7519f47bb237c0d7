// The forward and the backward pass of a part of a ModuleModel through autograd. Called by the engine's block
// and by the trial run that measures the part. Used only inside engine/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "engine/module_model.h"

namespace optimus {

// Enables autograd dispatch even where the engine has disabled it. A graph is recorded only if `records` is
// true.
class AutogradGuard {
 public:
  explicit AutogradGuard(bool records)
      : dispatch_(c10::impl::tls_local_dispatch_key_set().included_,
                  c10::impl::tls_local_dispatch_key_set().excluded_ -
                      c10::autograd_dispatch_keyset_with_ADInplaceOrView),
        grad_mode_(records) {}

 private:
  c10::impl::ForceDispatchKeyGuard dispatch_;
  at::AutoGradMode grad_mode_;
};

// The starting point of a backward pass.
struct ModuleGraph {
  at::Tensor input;  // undefined if no input gradient is needed
  at::Tensor root;   // the output, whose values are already freed, or the loss
};

struct ModuleForward {
  at::Tensor output;  // output of the part, or the loss for the last part
  ModuleGraph graph;  // empty unless recorded
};

struct ForwardOptions {
  bool is_recorded = false, wants_input_gradient = false;
  at::Tensor targets{};  // defined only for the last part, which computes the loss
  at::ScalarType wide = at::kFloat;
};

// Runs the forward pass of a part. `input` is [samples, …] and is not modified.
ModuleForward run_forward(const ModuleModel& model, std::size_t part, const at::Tensor& input,
                          const ForwardOptions& options);

struct ModuleGradients {
  at::Tensor input;
  std::vector<at::Tensor> parameters;  // undefined for unused parameters
};
// Runs the backward pass and frees the graph. `gradient` is the gradient of graph.root. The result contains
// the gradients of `parameters`, in the same order.
ModuleGradients run_backward(ModuleGraph graph, const at::Tensor& gradient,
                             const std::vector<at::Tensor>& parameters);

// Returns the names and tensors of the part's parameters that require gradients, each of them once.
std::vector<std::pair<std::string, at::Tensor>> trained_parameters(const ModulePart& part);
// Returns all other tensors of the part's module, which are buffers and frozen parameters.
std::vector<at::Tensor> other_tensors(const ModulePart& part);

// Returns `tensor` on `device`, converted to `type` unless it contains integers.
at::Tensor converted(const at::Tensor& tensor, at::ScalarType type, at::Device device);

}  // namespace optimus
