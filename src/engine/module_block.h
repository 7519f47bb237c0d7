// Blocks made of torch modules: forward is the module's own, gradients come from autograd. The module's parameters are views
// into the engine's flat buffers, so that everything behind the gradients is as in any other model.
//
//   const ModuleFacts facts = describe(model, data.read(0), precision, device);   // a trial of each part
//   Parameters parameters(plan, facts.spec, 0, device);
//   set_values(model, parameters);
//   LentModules lent(model, facts, parameters);
//   Engine engine(plan, facts.spec, parameters, {.make_custom_block = module_blocks(model, facts)});
//
// Activations that autograd keeps lie outside the engine's arena; the trial counts them, and programs carry them as buffers
// (BufferKind::graph), so that the memory of a plan is known before it runs.
#pragma once

#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/module_model.h"
#include "model/spec.h"

namespace optimus {

struct ModuleFacts {
  ModelSpec spec;
  std::vector<std::vector<std::int64_t>> input_shapes;  // [part], of one sample
  std::vector<std::int64_t> target_shape;
  ElementTypes types;
  at::Device device{at::kCPU};
};

// Runs every part on a few copies of the example. Modules are left as they were. Throws UserError where a part fails, is random
// or looks at other samples (beyond rounding), changes its buffers, or shares a parameter with another part. Element types are those of the
// precision; an input of whole numbers stays one. Work is counted of products and two-dimensional convolutions only.
ModuleFacts describe(const ModuleModel& model, const ModuleSample& example, Precision precision,
                     at::Device device);

// Parameters get the values that the modules have.
void set_values(const ModuleModel& model, Parameters& parameters);

// Puts the engine's buffers, with what they hold, under the modules' parameters, while it lives. At its end modules have tensors of
// their own again, of the types and on the devices they had, with the values that the parameters have by then; with ZeRO 3, of the
// own shard. The parameters must live longer. A run that changes its plan lends anew: nothing of the old plan's memory is held
// while state moves.
class LentModules {
 public:
  LentModules(const ModuleModel& model, const ModuleFacts& facts, Parameters& parameters);
  ~LentModules();
  LentModules(const LentModules&) = delete;
  LentModules& operator=(const LentModules&) = delete;

 private:
  struct Lent;
  void take_back(Lent& lent) const;
  Parameters& parameters_;
  std::vector<Lent> lent_;
};

// For EngineOptions. Model and facts must outlive the engine; it runs steps while the modules are lent its parameters.
std::function<std::unique_ptr<Block>(int block, RecomputeMode mode)> module_blocks(const ModuleModel& model,
                                                                                   const ModuleFacts& facts);

// The samples of one step that are this device's, in an order that only the seed decides, each epoch anew.
Batch read_batch(const ModuleData& data, const ModuleFacts& facts, const Plan& plan, std::int64_t step,
                 std::int64_t first_sample, std::int64_t seed, int device = 0);

}  // namespace optimus
