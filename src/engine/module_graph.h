// One forward and one backward of a part of a ModuleModel through autograd: what the engine's block runs and what the trial
// before it measures. Used inside engine/ only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "engine/module_model.h"

namespace optimus {

// Autograd is seen again, also where the engine switched it off; it records only when `records`.
class WithAutograd {
 public:
  explicit WithAutograd(bool records)
      : dispatch_(c10::impl::tls_local_dispatch_key_set().included_,
                  c10::impl::tls_local_dispatch_key_set().excluded_ -
                      c10::autograd_dispatch_keyset_with_ADInplaceOrView),
        grad_mode_(records) {}

 private:
  c10::impl::ForceDispatchKeyGuard dispatch_;
  at::AutoGradMode grad_mode_;
};

// What a backward starts from.
struct ModuleGraph {
  at::Tensor input;  // undefined: its gradient is not wanted
  at::Tensor root;   // the output or the loss; of an output the values are gone
};

struct ModuleForward {
  at::Tensor output;  // of the part, or the loss
  ModuleGraph graph;  // empty unless recorded
};

struct ForwardOptions {
  bool is_recorded = false, wants_input_gradient = false;
  at::Tensor targets{};  // defined: the last part, which ends in the loss
  at::ScalarType wide = at::kFloat;
};

// input: [samples, …], read only.
ModuleForward run_forward(const ModuleModel& model, std::size_t part, const at::Tensor& input,
                          const ForwardOptions& options);

struct ModuleGradients {
  at::Tensor input;
  std::vector<at::Tensor> parameters;  // undefined where one was not used
};
// Frees the graph as it goes. gradient: of the root.
ModuleGradients run_backward(ModuleGraph graph, const at::Tensor& gradient,
                             const std::vector<at::Tensor>& parameters);

// A part's parameters that want gradients, by name, each once.
std::vector<std::pair<std::string, at::Tensor>> trained_parameters(const ModulePart& part);
// Everything else that the part's module holds: buffers, frozen parameters.
std::vector<at::Tensor> other_tensors(const ModulePart& part);

// On the device; of `type` unless it holds whole numbers.
at::Tensor converted(const at::Tensor& tensor, at::ScalarType type, at::Device device);

}  // namespace optimus
