// See asynchronous.h.
#include "engine/asynchronous.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/kernels.h"
#include "kernels/step_scalars.h"

namespace optimus {
namespace {

StagePosition position_of(const Plan& plan, const PlanLocation& location) {
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(location.pipeline)];
  const Stage& stage = pipeline.stages[static_cast<std::size_t>(location.stage)];
  return {location.stage, static_cast<int>(pipeline.stages.size()),
          static_cast<int>(pipeline.microbatches.size()), static_cast<int>(stage.chunks.size())};
}

// Returns, for each instruction, the micro-batch whose backward pass starts with it, or -1. A backward pass
// starts with its first instruction that may read weights. Its messages come earlier in the list, before the
// updates of older micro-batches.
std::vector<int> backward_starts(const Program& program, const Order& order) {
  std::vector<int> result(program.instructions.size(), -1);
  std::vector<bool> is_seen(order.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const Instruction& at = program.instructions[i];
    const bool belongs_to_block =
        at.lane == Lane::compute || (at.lane == Lane::tensor && at.serves != Op::receive);
    if (at.slot < 0 || !belongs_to_block) continue;
    const auto slot = static_cast<std::size_t>(at.slot);
    if (order[slot].work != Work::backward || is_seen[slot]) continue;
    is_seen[slot] = true, result[i] = at.microbatch;
  }
  return result;
}

}  // namespace

std::vector<int> delays(Schedule schedule, const StagePosition& position) {
  std::vector<int> result(static_cast<std::size_t>(position.num_microbatches));
  if (!is_asynchronous(schedule)) return result;
  int num_updates = 0;
  for (const Slot& slot : order_of(schedule, position)) {
    int& delay = result[static_cast<std::size_t>(slot.microbatch)];
    if (slot.work == Work::forward) delay = -num_updates;
    if (slot.work == Work::backward) delay += num_updates;
    if (slot.work == Work::update) ++num_updates;
  }
  return result;
}

WeightVersions::WeightVersions(const Plan& plan, const Program& program, const Parameters& parameters)
    : schedule_(plan.schedule), parameters_(parameters) {
  const StagePosition position = position_of(plan, program.location);
  delays_ = delays(schedule_, position);
  longest_delay_ = *std::max_element(delays_.begin(), delays_.end());
  if (longest_delay_ == 0) return;
  is_version_needed_.resize(delays_.size());
  for (std::size_t m = 0; m < delays_.size(); ++m)
    if (delays_[m] > 0) is_version_needed_[m - static_cast<std::size_t>(delays_[m])] = true;
  backward_starts_ = backward_starts(program, order_of(schedule_, position));
  const int num_saved = schedule_ == Schedule::pipedream ? longest_delay_ : 1;
  const auto num_blocks = static_cast<std::size_t>(parameters.num_blocks());
  saved_weights_.resize(num_blocks), velocities_.resize(num_blocks), has_new_update_.resize(num_blocks);
  for (int block = 0; block < parameters.num_blocks(); ++block) {
    const BlockState& state = parameters.block(block);
    if (!state.gradients.defined()) continue;  // the block belongs to another stage, or nothing is trained
    blocks_.push_back(block);
    const auto at = static_cast<std::size_t>(block);
    for (int i = 0; i < num_saved; ++i) saved_weights_[at].push_back(at::empty_like(state.weights));
    if (schedule_ == Schedule::pipemare)
      velocities_[at] = at::zeros({state.weights.numel()}, state.gradients.options());
  }
}

// At most `longest_delay_` versions are needed at a time, so their buffers are reused in turn.
int WeightVersions::version_of(int microbatch) const {
  const int delay = delays_[static_cast<std::size_t>(microbatch)];
  if (delay == 0) return -1;
  return schedule_ == Schedule::pipedream ? (microbatch - delay) % longest_delay_ : 0;
}

at::Tensor WeightVersions::weights(int block, int version) const {
  const std::vector<at::Tensor>& saved = saved_weights_[static_cast<std::size_t>(block)];
  return saved.empty() ? at::Tensor() : saved[static_cast<std::size_t>(version)];
}

void WeightVersions::before_instruction(std::size_t instruction) {
  if (schedule_ != Schedule::pipemare || backward_starts_.empty() || backward_starts_[instruction] < 0)
    return;
  update_velocity();
  correct(delays_[static_cast<std::size_t>(backward_starts_[instruction])]);
}

// The update after micro-batch k turns version k into version k + 1.
void WeightVersions::before_update(int block, int microbatch, bool changes) {
  const auto at = static_cast<std::size_t>(block);
  if (longest_delay_ == 0 || saved_weights_[at].empty()) return;
  const at::Tensor& newest = parameters_.block(block).weights;
  if (schedule_ == Schedule::pipedream) {
    if (is_version_needed_[static_cast<std::size_t>(microbatch)])
      saved_weights_[at][static_cast<std::size_t>(microbatch % longest_delay_)].copy_(newest);
  } else if (changes) {
    saved_weights_[at].front().copy_(newest);
    has_new_update_[at] = true;
  }
}

void WeightVersions::end_step() {
  if (schedule_ == Schedule::pipemare && longest_delay_ > 0) update_velocity();
}

// velocity = remaining * velocity + (1 - remaining) * (weights after the last update - weights before it).
// The saved copy contains the weights before the last update. The difference of nearby values in a 16-bit
// type is exact.
void WeightVersions::update_velocity() {
  const double remaining = std::pow(options_.decay, 1.0 / longest_delay_);
  for (const int block : blocks_) {
    const auto at = static_cast<std::size_t>(block);
    if (!has_new_update_[at]) continue;
    has_new_update_[at] = false;
    if (options_.decay > 0)
      velocities_[at].mul_(remaining).sub_(saved_weights_[at].front().sub_(parameters_.block(block).weights),
                                           1 - remaining);
  }
}

// Computes the corrected weights, newest weights - delay * velocity.
void WeightVersions::correct(int delay) {
  if (delay == 0) return;
  for (const int block : blocks_) {
    const auto at = static_cast<std::size_t>(block);
    at::Tensor& corrected = saved_weights_[at].front();
    const at::Tensor& newest = parameters_.block(block).weights;
    if (options_.decay > 0)
      at::sub_out(corrected, newest, velocities_[at], delay);
    else
      corrected.copy_(newest);
  }
}

Bytes WeightVersions::bytes() const {
  std::size_t sum = 0;
  for (const int block : blocks_) {
    const auto at = static_cast<std::size_t>(block);
    for (const at::Tensor& saved : saved_weights_[at]) sum += saved.nbytes();
    if (velocities_[at].defined()) sum += velocities_[at].nbytes();
  }
  return Bytes(static_cast<std::int64_t>(sum));
}

MicrobatchUpdates::MicrobatchUpdates(const Plan& plan, const PlanLocation& location, at::Device device)
    : device_(device), is_rescheduled_(plan.schedule == Schedule::pipemare) {
  const std::vector<int> microbatch_delays = delays(plan.schedule, position_of(plan, location));
  num_microbatches_ = std::ssize(microbatch_delays);
  delay_ = 1 + *std::max_element(microbatch_delays.begin(), microbatch_delays.end());
}

void MicrobatchUpdates::begin(const std::vector<std::int64_t>& target_counts, const UpdateOptions& options,
                              std::int64_t num_updates) {
  ensure(std::ssize(target_counts) == num_microbatches_, "target counts: expected {} micro-batches, got {}",
         num_microbatches_, target_counts.size());
  const auto num = std::ssize(target_counts);
  step_scalars_.assign(target_counts.size(), {});
  count_ = 0;
  const at::Tensor weights = at::zeros({num}, at::kDouble);
  for (std::int64_t m = 0; m < num; ++m) {
    const auto targets = static_cast<double>(target_counts[static_cast<std::size_t>(m)]);
    if (targets == 0) continue;
    const std::int64_t num_updates_before = num_updates + count_++;
    double rate = options.learning_rate;
    if (const std::int64_t num_warmup = options.pipemare.num_warmup_updates;
        is_rescheduled_ && num_updates_before < num_warmup)
      rate /= std::pow(delay_, 1 - static_cast<double>(num_updates_before) / static_cast<double>(num_warmup));
    step_scalars_[static_cast<std::size_t>(m)] =
        step_scalars_after_gate(device_, rate, num_updates_before + 1, 1 / targets,
                                {.beta1 = options.beta1, .beta2 = options.beta2, .clip = 0});
    weights.data_ptr<double>()[m] = 1 / (targets * targets);
  }
  weights_ = weights.to(device_);
  squares_ = at::zeros({num}, weights_.options());
}

at::Tensor MicrobatchUpdates::all_squares() const { return (squares_ * weights_).sum(); }

}  // namespace optimus
