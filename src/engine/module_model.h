// A model that is a sequence of torch modules, and its data. A program whose model is not a transformer
// passes both to train() (run/train_modules.h). Each part becomes a block of the engine
// (engine/module_block.h). Plans, memory, updates and precision work as for other models.
//
//   ModuleModel model{.name = "net", .loss = …};
//   model.add("conv1", torch::nn::Conv2d(…));                           // anything with forward(Tensor)
//   model.parts.push_back(
//       {.name = "pool", .forward = [](const at::Tensor& x) { return at::max_pool2d(x, 2); }});
//
// Training must not depend on how a batch is split into micro-batches. The result of a part for a sample must
// therefore be deterministic and independent of the other samples in its batch. For this reason, describe()
// rejects batch statistics and torch's own dropout. libtorch's module headers are slow to compile; only code
// that constructs modules needs them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace optimus {

struct ModulePart {
  std::string name;  // such as "conv1"; also the name of the block and prefix of its parameters
  std::shared_ptr<torch::nn::Module> module{};  // shared with the caller; null if it has no parameters
  std::function<at::Tensor(const at::Tensor& input)> forward;  // [samples, …] -> [samples, …]
  // Creates a part with its own module and the same values, for another rank in this process. Null if the
  // part has no module, because all ranks can then call the same function.
  std::function<ModulePart()> copy{};
};

struct ModuleModel {
  std::string name = "modules";
  std::vector<ModulePart> parts{};
  // Computes the loss from the last part's output and the targets of the same samples. The result has one
  // element, the sum over samples (not the mean).
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)> loss{};

  template <typename Holder>  // torch::nn::Linear and similar
  void add(std::string part, Holder module) {
    parts.push_back(part_of(std::move(part), std::move(module)));
  }

 private:
  template <typename Holder>
  static ModulePart part_of(std::string name, Holder module) {
    return {name, module.ptr(), [module](const at::Tensor& input) mutable { return module->forward(input); },
            [name, module] {
              using Contained = typename Holder::ContainedType;
              return part_of(name, Holder(std::dynamic_pointer_cast<Contained>(module->clone())));
            }};
  }
};

// Copies the model for another rank in this process. Throws UserError if a part has a module and cannot be
// copied.
ModuleModel copy_of(const ModuleModel& model);

struct ModuleSample {
  at::Tensor input, target;  // without a sample dimension; all samples have the same shapes
};

struct ModuleData {
  std::int64_t num_samples = 0;
  // Returns sample `number`, from 0 to num_samples - 1. May be called on another thread.
  std::function<ModuleSample(std::int64_t number)> read{};
};

}  // namespace optimus
