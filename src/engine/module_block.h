// Blocks made of torch modules. The module computes the forward pass, and autograd computes the gradients.
// The modules' parameters are views into the engine's flat buffers, so everything after the gradients is the
// same as for other models.
//
//   // Runs each part once.
//   const ModuleDescription description = describe(model, data.read(0), precision, device);
//   Parameters parameters(plan, description.spec, 0, device);
//   set_values(model, parameters);
//   ModuleBinding binding(model, description, parameters);
//   Engine engine(plan, description.spec, parameters,
//                 {.make_custom_block = module_blocks(model, description)});
//
// Activations saved by autograd are outside the engine's arena. describe() measures them, and programs
// include them as buffers (BufferKind::graph), so that the memory of a plan is known before it runs.
#pragma once

#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/module_model.h"
#include "model/spec.h"

namespace optimus {

struct ModuleDescription {
  ModelSpec spec;
  std::vector<std::vector<std::int64_t>> input_shapes;  // [part]: shape of one sample's input
  std::vector<std::int64_t> target_shape;
  ElementTypes types;
  at::Device device{at::kCPU};
};

// Runs every part on a few copies of the example. Does not change the modules. Throws UserError if a part
// fails, is random, depends on other samples of its batch (beyond rounding), changes its buffers, or shares a
// parameter with another part. Element types are those of the precision, but integer inputs keep their type.
// Only the floating-point operations of matrix multiplications and two-dimensional convolutions are counted.
ModuleDescription describe(const ModuleModel& model, const ModuleSample& example, Precision precision,
                           at::Device device);

// Copies the values of the modules into the parameters.
void set_values(const ModuleModel& model, Parameters& parameters);

// While this object exists, the modules' parameters are views into the engine's buffers. The destructor gives
// the modules their own tensors again, with the original types and devices and the current values of the
// parameters (with ZeRO 3, only the values of this rank's shard). `parameters` must outlive this object. A
// run that changes its plan creates a new ModuleBinding, so that no memory of the old plan is referenced
// while state moves.
class ModuleBinding {
 public:
  ModuleBinding(const ModuleModel& model, const ModuleDescription& description, Parameters& parameters);
  ~ModuleBinding();
  ModuleBinding(const ModuleBinding&) = delete;
  ModuleBinding& operator=(const ModuleBinding&) = delete;

 private:
  struct BoundTensor;
  void restore_tensor(BoundTensor& binding) const;
  Parameters& parameters_;
  std::vector<BoundTensor> bound_tensors_;
};

// Returns the function for EngineOptions::make_custom_block. `model` and `description` must outlive the
// engine. The engine may run steps only while a ModuleBinding for its parameters exists.
std::function<std::unique_ptr<Block>(int block, RecomputeMode mode)> module_blocks(
    const ModuleModel& model, const ModuleDescription& description);

// Returns this device's samples of one step. The order of samples depends only on the seed and is reshuffled
// in each epoch.
Batch read_batch(const ModuleData& data, const ModuleDescription& description, const Plan& plan,
                 std::int64_t step, std::int64_t first_sample, std::int64_t seed, int device = 0);

}  // namespace optimus
