// Implements the end of a step (engine.h). This includes the step gate, the subsequent updates of each block,
// the completion of a failed step, and the statistics of gradient noise. Updates cover this rank's shard and
// the shard of which it has a redundant copy (Plan::copy_distance).
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "base/error.h"
#include "engine/engine.h"

namespace optimus {

// Sums the step scalars over all devices. The result stays on the device.
CommOutcome<void> Engine::sum_over_devices() {
  if (options_.comm == nullptr) return {};
  const std::unique_ptr<Pending> sum =
      options_.comm->all_reduce(world_, step_scalars_.narrow(0, static_cast<int>(kFirstSum), kNumSums),
                                ReduceOp::sum, "loss and gradient norm");
  return sum->wait(Deadline::after(options_.timeout, "step_gate"));
}

// Reduces the amax values of fp8 operands over all devices.
CommOutcome<void> Engine::reduce_maxima() {
  if (options_.comm == nullptr || fp8_ == nullptr) return {};
  const std::unique_ptr<Pending> maxima =
      options_.comm->all_reduce(world_, fp8_->maxima(), ReduceOp::maximum, "maxima of fp8 operands");
  return maxima->wait(Deadline::after(options_.timeout, "step_gate"));
}

// Waits until all communication of the step has completed successfully. Only then is the step complete.
CommOutcome<void> Engine::synchronize() {
  if (options_.comm == nullptr) return {};
  return options_.comm->synchronize(Deadline::after(options_.timeout, "end of step"));
}

// Computes the gradient norm and the other scalars that updates need. For the norm, each element of the model
// is counted on exactly one device. The results stay on the device.
CommOutcome<void> Engine::pass_gate() {
  for (int block = 0; block < parameters_.num_blocks(); ++block)
    for (const StateRange& run : parameters_.counted_ranges_of(block))
      kernels_->add_square_sum(parameters_.block(block).gradients.narrow(0, run.shard, run.length),
                               square_sum_);
  if (update_options_.measures_gradient_noise) add_moment_sum();
  progress_ = Progress::at_gate;
  if (CommOutcome<void> outcome = reduce_maxima(); !outcome) return outcome;
  if (CommOutcome<void> outcome = sum_over_devices(); !outcome) return outcome;
  kernels_->pass_gate({update_options_.beta1, update_options_.beta2, update_options_.clip}, step_scalars_);
  if (before_updates) before_updates();
  progress_ = Progress::updating, next_update_ = 0;
  return {};
}

// An exception in the middle of an update leaves a state that cannot be saved.
void Engine::update_after_gate(std::size_t index) {
  progress_ = Progress::torn;
  update_block(program_.instructions[index].block, step_scalars_);
  repeat_update(index);
  progress_ = Progress::updating, next_update_ = index + 1;
}

// Used by asynchronous schedules. Computes the values of the step report after all updates.
CommOutcome<void> Engine::end_updates() {
  weight_versions_.end_step();
  square_sum_.copy_(microbatch_updates_.all_squares());
  if (CommOutcome<void> outcome = sum_over_devices(); !outcome) return outcome;
  const auto at = [&](StepScalar scalar) { return step_scalars_.select(0, static_cast<int>(scalar)); };
  const std::int64_t count = microbatch_updates_.count();
  const auto divisor = static_cast<double>(std::max<std::int64_t>(1, count));
  at(StepScalar::grad_norm).copy_((square_sum_.select(0, 0) / divisor).sqrt());
  at(StepScalar::num_updates).add_(count);
  at(StepScalar::is_finite).fill_(count > 0 ? 1 : 0);
  return {};
}

// Used by asynchronous schedules. Updates with the gradient of one micro-batch and then clears the gradient.
void Engine::update_immediately(const Instruction& instruction) {
  at::Tensor gradients = parameters_.block(instruction.block).gradients;
  if (!gradients.defined()) return;
  const bool changes = !microbatch_updates_.is_empty(instruction.microbatch);
  weight_versions_.before_update(instruction.block, instruction.microbatch, changes);
  if (!changes) return;
  at::Tensor squares = microbatch_updates_.square_sum(instruction.microbatch);
  for (const StateRange& run : parameters_.counted_ranges_of(instruction.block))
    kernels_->add_square_sum(gradients.narrow(0, run.shard, run.length), squares);
  update_block(instruction.block, microbatch_updates_.step_scalars(instruction.microbatch));
  gradients.zero_();
}

// Executes the weight gathers that follow the updates in the program.
CommOutcome<void> Engine::gather_weights() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd_dispatch;
  if (types_.element == types_.wide) return {};  // the weights are the masters, which are already complete
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    if (instruction.op != Op::gather_parameters || strategy_of(stage_, instruction.block).zero == 3) continue;
    const std::unique_ptr<Pending> pending = state_exchange_.begin(instruction, buffers_of(i));
    if (pending == nullptr) continue;
    if (CommOutcome<void> outcome = pending->wait(Deadline::after(options_.timeout, text(instruction.op)));
        !outcome)
      return outcome;
    state_exchange_.end(instruction, buffers_of(i));
  }
  return synchronize();
}

StepReport Engine::finish_step(const std::vector<double>& gate_sums) {
  const std::int64_t num_maxima = fp8_ == nullptr ? 0 : fp8_->maxima().numel();
  ensure(progress_ == Progress::updating ||
             (progress_ == Progress::at_gate && std::ssize(gate_sums) == kNumSums + num_maxima),
         "cannot finish a step in progress state {} with {} gate sums", static_cast<int>(progress_),
         gate_sums.size());
  const at::AutoDispatchBelowADInplaceOrView no_autograd_dispatch;
  if (progress_ == Progress::at_gate) {
    host_step_scalars_.copy_(step_scalars_);
    std::copy_n(gate_sums.begin(), static_cast<int>(kNumSums),
                host_step_scalars_.data_ptr<double>() + static_cast<int>(kFirstSum));
    step_scalars_.copy_(host_step_scalars_);
    if (fp8_ != nullptr)
      fp8_->maxima().copy_(at::tensor(
          at::ArrayRef<double>(gate_sums.data() + kNumSums, static_cast<std::size_t>(num_maxima))));
    kernels_->pass_gate({update_options_.beta1, update_options_.beta2, update_options_.clip}, step_scalars_);
    progress_ = Progress::updating, next_update_ = 0;
  }
  if (before_updates) before_updates();
  for (std::size_t i = next_update_; i < program_.instructions.size(); ++i)
    if (program_.instructions[i].op == Op::optimizer) update_after_gate(i);
  StepReport report = end_step();
  progress_ = Progress::between;
  return report;
}

void Engine::update_block(int block, const at::Tensor& step_scalars) {
  const BlockState& state = parameters_.block(block);
  if (!state.weights.defined()) return;
  update(block, step_scalars,
         {parameters_, state.gradients, state.weights,
          !parameters_.shape(block).is_sharded(StateKind::weights)});
}

// Uses the same kernel on the same ranges as the device that owns the shard, so that the copy is
// bit-identical. The resulting weights go where a gather will write the same values, or to unused memory.
void Engine::repeat_update(std::size_t index) {
  const int block = program_.instructions[index].block;
  const Parameters* const copies = parameters_.copies();
  if (copies == nullptr || copies->shape(block).tensors.empty()) return;
  const BlockState &own_state = parameters_.block(block), &copy = copies->block(block);
  const StateBuffers buffers = buffers_of(index);
  const at::Tensor gradients = state_exchange_.copied_gradients(block, buffers);
  const bool has_whole_weights = !parameters_.shape(block).is_sharded(StateKind::weights);
  if (has_whole_weights) return update(block, step_scalars_, {*copies, gradients, own_state.weights, true});
  const bool are_masters = types_.element == types_.wide;
  const at::Tensor weights = are_masters ? copy.masters : state_exchange_.copied_weights(block, buffers);
  update(block, step_scalars_, {*copies, gradients, weights, false});
}

// Updates the ranges of a block's state that operands.of owns. Masters that are weights are laid out like
// weights.
void Engine::update(int block, const at::Tensor& step_scalars, const UpdateOperands& operands) {
  const BlockState& state = operands.of.block(block);
  AdamOptions adam{
      .beta1 = update_options_.beta1, .beta2 = update_options_.beta2, .epsilon = update_options_.epsilon};
  for (const StateRange& run : operands.of.update_ranges_of(block)) {
    const auto range_of = [&](const at::Tensor& flat) { return flat.narrow(0, run.shard, run.length); };
    adam.weight_decay = run.has_weight_decay ? update_options_.weight_decay : 0;
    at::Tensor weights =
                   operands.weights.narrow(0, operands.has_whole_weights ? run.whole : run.shard, run.length),
               masters = types_.element == types_.wide ? weights : range_of(state.masters),
               first = range_of(state.first_moment), second = range_of(state.second_moment);
    kernels_->adamw(adam, step_scalars, range_of(operands.gradients), masters, first, second, weights);
  }
}

// Adds the dot product of gradients and first moments. Uses fp64, so that the result does not depend on the
// number of devices, and processes chunks.
void Engine::add_moment_sum() {
  constexpr std::int64_t kChunkElements = 1 << 18;
  at::Tensor sum = step_scalars_.select(0, static_cast<int>(StepScalar::moment_sum));
  for (int block = 0; block < parameters_.num_blocks(); ++block) {
    const BlockState& state = parameters_.block(block);
    for (const StateRange& run : parameters_.counted_ranges_of(block))
      for (std::int64_t at = 0; at < run.length; at += kChunkElements) {
        const auto chunk_of = [&](const at::Tensor& flat) {
          return flat.narrow(0, run.shard + at, std::min(kChunkElements, run.length - at)).to(at::kDouble);
        };
        sum.add_(at::dot(chunk_of(state.gradients), chunk_of(state.first_moment)));
      }
  }
}

// Gradients are sums over targets, multiplied by the loss scale. Moments refer to the mean loss.
void Engine::update_noise(const double* step_scalars) {
  const auto at = [&](StepScalar scalar) { return step_scalars[static_cast<int>(scalar)]; };
  const double mean_divisor = at(StepScalar::loss_scale) * at(StepScalar::num_targets);
  noise.add_measurement({.gradient_squared = at(StepScalar::grad_norm) * at(StepScalar::grad_norm),
                         .moment_product = at(StepScalar::moment_sum) / mean_divisor,
                         .samples = static_cast<double>(plan_.batch),
                         .clip_factor = at(StepScalar::factor) * mean_divisor,
                         .beta1 = update_options_.beta1});
}

}  // namespace optimus
