// Engine: the update of one block, behind the gate: of the own shard, and again of the one that this device keeps a copy of (Plan::buddy).
#include "engine/engine.h"

namespace optimus {

void Engine::update_block(int block, const at::Tensor& numbers) {
  const BlockState& state = parameters_.block(block);
  if (!state.weights.defined()) return;
  update(block, numbers,
         {parameters_, state.gradients, state.weights,
          !parameters_.shape(block).is_sharded(StateKind::weights)});
}

// The same kernel in the same pieces as on the device that the shard belongs to, so that the copy has the same bits. Weights that come
// of it go where a gather brings the same ones, or where nobody looks.
void Engine::repeat_update(std::size_t index) {
  const int block = program_.instructions[index].block;
  const Parameters* const copies = parameters_.copies();
  if (copies == nullptr || copies->shape(block).tensors.empty()) return;
  const BlockState &own = parameters_.block(block), &copy = copies->block(block);
  const StateBuffers buffers = buffers_of(index);
  const at::Tensor gradients = state_.copied_gradients(block, buffers);
  const bool has_whole_weights = !parameters_.shape(block).is_sharded(StateKind::weights);
  if (has_whole_weights) return update(block, numbers_, {*copies, gradients, own.weights, true});
  const bool are_masters = types_.element == types_.wide;
  const at::Tensor weights = are_masters ? copy.masters : state_.copied_weights(block, buffers);
  update(block, numbers_, {*copies, gradients, weights, false});
}

// Masters that are weights lie with them.
void Engine::update(int block, const at::Tensor& numbers, const Updated& what) {
  const BlockState& state = what.of.block(block);
  AdamOptions adam{.beta1 = update_.beta1, .beta2 = update_.beta2, .epsilon = update_.epsilon};
  for (const StateRun& run : what.of.updates(block)) {
    const auto own = [&](const at::Tensor& flat) { return flat.narrow(0, run.shard, run.length); };
    adam.weight_decay = run.has_weight_decay ? update_.weight_decay : 0;
    at::Tensor weights = what.weights.narrow(0, what.has_whole_weights ? run.whole : run.shard, run.length),
               masters = types_.element == types_.wide ? weights : own(state.masters),
               first = own(state.first), second = own(state.second);
    kernels_->adamw(adam, numbers, own(what.gradients), masters, first, second, weights);
  }
}

}  // namespace optimus
