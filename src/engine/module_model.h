// A model that is a row of torch modules, and its data: what a program hands to train() (run/train_modules.h) when its model is no
// transformer. Each part becomes a block of the engine (engine/module_block.h), so that plans, memory, updates and precision are
// those of every other model.
//
//   ModuleModel model{.name = "net", .loss = …};
//   model.add("conv1", torch::nn::Conv2d(…));                           // anything with forward(Tensor)
//   model.parts.push_back({.name = "pool", .forward = [](const at::Tensor& x) { return at::max_pool2d(x, 2); }});
//
// What is learned must not depend on how a batch is cut into micro-batches, so a part must give each sample the same whatever
// else is in its batch, and the same each time: batch statistics and torch's own dropout are refused (describe). libtorch's
// module headers are slow to compile; only who makes modules needs them.
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
  std::string name;                             // "conv1": of the block, and in front of its parameters
  std::shared_ptr<torch::nn::Module> module{};  // owned together with the caller; null: no parameters
  std::function<at::Tensor(const at::Tensor& input)> forward;  // [samples, …] -> [samples, …]
  // Another part with a module of its own that has the same values, for another rank of this process. Null where there is no
  // module: then one function is called by all ranks.
  std::function<ModulePart()> copy{};
};

struct ModuleModel {
  std::string name = "modules";
  std::vector<ModulePart> parts{};
  // Of the last part's output and the targets of the same samples: the sum over samples (not the mean), one element.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)> loss{};

  template <typename Holder>  // torch::nn::Linear and the like
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

// For another rank of this process. Throws UserError where a part has a module and cannot be copied.
ModuleModel copy_of(const ModuleModel& model);

struct ModuleSample {
  at::Tensor input, target;  // without a dimension for samples; the same shapes in all samples
};

struct ModuleData {
  std::int64_t num_samples = 0;
  std::function<ModuleSample(std::int64_t number)>
      read{};  // 0 <= number < num_samples; may run on another thread
};

}  // namespace optimus
