// Implements the updates of engine.h: the update of one block after the gate, for the own shard and for the
// shard of which this device has a redundant copy (Plan::copy_distance); and the statistics of gradient noise.
#include <ATen/ops/dot.h>

#include <algorithm>

#include "engine/engine.h"

namespace optimus {

void Engine::update_block(int block, const at::Tensor& numbers) {
  const BlockState& state = parameters_.block(block);
  if (!state.weights.defined()) return;
  update(block, numbers,
         {parameters_, state.gradients, state.weights,
          !parameters_.shape(block).is_sharded(StateKind::weights)});
}

// Uses the same kernel on the same ranges as the device that owns the shard, so that the copy is
// bit-identical. The resulting weights go where a gather will write the same values, or to unused memory.
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

// Masters that are weights are laid out like them.
void Engine::update(int block, const at::Tensor& numbers, const Updated& what) {
  const BlockState& state = what.of.block(block);
  AdamOptions adam{.beta1 = update_.beta1, .beta2 = update_.beta2, .epsilon = update_.epsilon};
  for (const StateRange& run : what.of.updates(block)) {
    const auto own = [&](const at::Tensor& flat) { return flat.narrow(0, run.shard, run.length); };
    adam.weight_decay = run.has_weight_decay ? update_.weight_decay : 0;
    at::Tensor weights = what.weights.narrow(0, what.has_whole_weights ? run.whole : run.shard, run.length),
               masters = types_.element == types_.wide ? weights : own(state.masters),
               first = own(state.first), second = own(state.second);
    kernels_->adamw(adam, numbers, own(what.gradients), masters, first, second, weights);
  }
}

// In doubles, a piece at a time: the sum must not depend on the number of devices.
void Engine::add_moment_sum() {
  constexpr std::int64_t kChunkElements = 1 << 18;
  at::Tensor sum = numbers_.select(0, static_cast<int>(StepScalar::moment_sum));
  for (int block = 0; block < parameters_.num_blocks(); ++block) {
    const BlockState& state = parameters_.block(block);
    for (const StateRange& run : parameters_.counted(block))
      for (std::int64_t at = 0; at < run.length; at += kChunkElements) {
        const auto some = [&](const at::Tensor& flat) {
          return flat.narrow(0, run.shard + at, std::min(kChunkElements, run.length - at)).to(at::kDouble);
        };
        sum.add_(at::dot(some(state.gradients), some(state.first)));
      }
  }
}

// Gradients are sums over targets, multiplied by the loss scale; moments refer to the mean loss.
void Engine::update_noise(const double* numbers) {
  const auto at = [&](StepScalar which) { return numbers[static_cast<int>(which)]; };
  const double to_mean = at(StepScalar::loss_scale) * at(StepScalar::num_counted);
  noise.add_measurement({.squared = at(StepScalar::grad_norm) * at(StepScalar::grad_norm),
                         .product = at(StepScalar::moment_sum) / to_mean,
                         .samples = static_cast<double>(plan_.batch),
                         .factor = at(StepScalar::factor) * to_mean,
                         .beta1 = update_.beta1});
}

}  // namespace optimus
