// Implements engine.h: runs a step. engine_setup.cpp constructs the engine. update.cpp has the step gate and
// the updates.
#include "engine/engine.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "engine/cache.h"
#include "engine/layer_ring_attention.h"

namespace optimus {

void LossScale::update(bool is_finite) {
  constexpr std::int64_t kGrowthInterval = 1000;
  if (!is_finite) {
    value = std::max(1.0, value / 2), num_good_steps = 0;
  } else if (++num_good_steps == kGrowthInterval) {
    value = std::min(0x1p24, value * 2), num_good_steps = 0;
  }
}

CommOutcome<StepReport> Engine::train_step(const Batch& batch, const UpdateOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd_dispatch;
  const bool is_async = is_asynchronous(plan_.schedule);
  if (is_async && options.clip > 0)
    throw UserError(
        "clip {}: schedule {} updates stages at different times and has no global gradient norm; use --clip "
        "0",
        options.clip, text(plan_.schedule));
  load(batch);
  update_options_ = options;
  if (is_async)
    microbatch_updates_.begin(batch.target_counts, options, num_updates),
        weight_versions_.set(options.pipemare);
  step_loss_scale_ = plan_.precision == Precision::fp16 ? loss_scale.value : 1;
  begin_step_scalars(/*is_training=*/true);
  // An asynchronous schedule changes the state throughout the step.
  progress_ = is_async ? Progress::torn : Progress::between;
  if (const CommOutcome<void> outcome = run_whole_step(batch); !outcome) {
    // The host has run ahead of the device, so it is unknown which inputs the step gate and the updates on
    // the device have used.
    if (options_.device.is_cuda() && progress_ != Progress::between) progress_ = Progress::torn;
    return tl::unexpected(outcome.error());
  }
  StepReport report = end_step();
  progress_ = Progress::between;
  return report;
}

CommOutcome<void> Engine::run_whole_step(const Batch& batch) {
  CommOutcome<void> outcome;
  const auto work = [&] { outcome = run({}); };
  if (can_record(batch))
    recording_.run(
        {step_loss_scale_, update_options_.beta1, update_options_.beta2, update_options_.epsilon,
         update_options_.weight_decay, update_options_.clip, fp8_ != nullptr && fp8_->uses_fp8() ? 1.0 : 0.0,
         update_options_.measures_gradient_noise ? 1.0 : 0.0},
        work);
  else
    work();
  return outcome ? synchronize() : outcome;
}

void Engine::release() {
  pending_.clear();
  pending_.resize(program_.instructions.size());
}

// A step cannot be recorded as a CUDA graph if values that change from step to step are kernel arguments
// (dropout keys, segments), or with autograd or several devices.
bool Engine::can_record(const Batch& batch) const {
  if (!options_.records_steps || !options_.device.is_cuda() || model_.is_custom() ||
      options_.comm != nullptr || instruction_log != nullptr || is_asynchronous(plan_.schedule))
    return false;
  if (model_.embedding_dropout > 0 || model_.hidden_dropout > 0 || model_.attention_dropout > 0) return false;
  for (const Microbatch& microbatch : batch.microbatches)
    if (!microbatch.segments.empty()) return false;
  return true;
}

std::string Engine::recording_status() const {
  if (recording_.is_recorded()) return "steps are replayed from a CUDA graph";
  return recording_.failure().empty() ? "steps are not recorded" : recording_.failure();
}

// The stage with the loss counts targets and tokens. Tensor-parallel ranks process the same tokens, so only
// the first of these ranks counts them.
void Engine::begin_step_scalars(bool is_training) {
  if (fp8_ != nullptr) fp8_->begin_step(is_training);
  const bool has_loss = stage_.chunks.back().end_block() == plan_.num_blocks;
  const bool is_first =
      has_loss && program_.location.index % strategy_of(stage_, plan_.num_blocks - 1).tp == 0;
  host_step_scalars_.zero_();
  auto* step_scalars = host_step_scalars_.data_ptr<double>();
  step_scalar(step_scalars, StepScalar::learning_rate) = update_options_.learning_rate;
  step_scalar(step_scalars, StepScalar::loss_scale) = step_loss_scale_;
  step_scalar(step_scalars, StepScalar::num_updates) = static_cast<double>(num_updates);
  step_scalar(step_scalars, StepScalar::num_targets) = is_first ? static_cast<double>(num_targets_) : 0;
  step_scalar(step_scalars, StepScalar::num_tokens) = is_first ? static_cast<double>(num_tokens_) : 0;
  step_scalars_.copy_(host_step_scalars_, /*non_blocking=*/true);
}

// The only place where a step waits for the device.
StepReport Engine::end_step() {
  host_step_scalars_.copy_(step_scalars_);
  auto* step_scalars = host_step_scalars_.data_ptr<double>();
  const bool is_finite = step_scalar(step_scalars, StepScalar::is_finite) != 0;
  num_updates = std::llround(step_scalar(step_scalars, StepScalar::num_updates));
  const double counted = step_scalar(step_scalars, StepScalar::num_targets);
  last_update_.options = update_options_;
  std::copy_n(step_scalars, kNumStepScalars, last_update_.step_scalars.begin());
  const double* const sums = &step_scalar(step_scalars, kFirstSum);
  gate_sums_.assign(sums, sums + kNumSums);
  if (fp8_ != nullptr) {
    fp8_->end_step(/*is_skipped=*/!is_finite);
    const at::Tensor maxima = fp8_->maxima().to(at::kCPU);
    gate_sums_.insert(gate_sums_.end(), maxima.const_data_ptr<float>(),
                      maxima.const_data_ptr<float>() + maxima.numel());
  }
  StepReport report{.loss = step_scalar(step_scalars, StepScalar::loss_sum) / std::max(1.0, counted),
                    .grad_norm = step_scalar(step_scalars, StepScalar::grad_norm),
                    .num_tokens = std::llround(step_scalar(step_scalars, StepScalar::num_tokens)),
                    .num_targets = std::llround(counted),
                    .is_skipped = !is_finite};
  if (update_options_.measures_gradient_noise && is_finite && !is_asynchronous(plan_.schedule))
    update_noise(step_scalars);
  if (plan_.precision == Precision::fp16) {
    report.loss_scale = step_loss_scale_;
    if (counted > 0) loss_scale.update(is_finite);
  }
  return report;
}

void Engine::load(const Batch& batch) {
  ensure(batch.microbatches.size() == microbatches_.size() && batch.sequence_length == plan_.sequence_length,
         "the batch has {} micro-batches of sequence length {}, which does not match the plan",
         batch.microbatches.size(), batch.sequence_length);
  num_targets_ = batch.num_targets, num_tokens_ = batch.num_tokens;
  // On the CPU, the batch's own memory is used. Other devices use a tensor at a fixed address.
  const auto copy_values = [&](const auto& values, at::ScalarType type, at::Tensor& to) {
    void* data = const_cast<void*>(static_cast<const void*>(values.data()));  // from_blob reads only
    const at::Tensor from = at::from_blob(data, {std::ssize(values)}, type);
    if (options_.device.is_cpu()) {
      to = from;
    } else if (to.defined() && to.numel() == from.numel()) {
      to.copy_(from);
    } else {
      to = from.to(options_.device);
      recording_.forget();
    }
  };
  for (std::size_t m = 0; m < microbatches_.size(); ++m) {
    const Microbatch& host = batch.microbatches[m];
    DeviceMicrobatch& microbatch = microbatches_[m];
    microbatch.host = &host;
    copy_values(host.ids, at::kLong, microbatch.ids),
        copy_values(host.targets, at::kLong, microbatch.targets);
    copy_values(host.positions, at::kInt, microbatch.positions);
  }
  for (Pass& pass : passes_) pass.step = batch.step;
}

// Executes the program in list order. An outstanding operation is completed before an instruction that waits
// for it, before the next instruction on its lane, or at the end of the program.
CommOutcome<void> Engine::run(const RunMode& mode) {
  mode_ = mode;
  if (!mode.is_forward_only)
    for (at::Tensor& sums : zeroed_sums_) sums.zero_();
  pending_.resize(program_.instructions.size());
  last_on_lane_.assign(6, -1);
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    // Operations are completed before skipped instructions too, because the memory plan assumes that their
    // buffers are free from this point on.
    if (CommOutcome<void> outcome = end_before(i); !outcome) return outcome;
    if (mode.is_forward_only && !is_forward_[i]) continue;
    if (instruction_log != nullptr) instruction_log->begin(i);
    time_limits_.begin(i, program_.instructions[i]);
    if (CommOutcome<void> outcome = execute(i); !outcome) return outcome;
    time_limits_.end(i, program_.instructions[i]);
    if (instruction_log != nullptr) instruction_log->mark_executed(i, pending_[i].get());
  }
  for (std::size_t i = 0; i < pending_.size(); ++i)
    if (CommOutcome<void> outcome = end(static_cast<int>(i)); !outcome) return outcome;
  return {};
}

CommOutcome<void> Engine::end_before(std::size_t index) {
  const Instruction& instruction = program_.instructions[index];
  for (const int wait : program_.waits(instruction))
    if (CommOutcome<void> outcome = end(wait); !outcome) return outcome;
  const bool is_in_order = instruction.lane != Lane::compute && instruction.lane != Lane::host &&
                           instruction.lane != Lane::transfer;
  if (!is_in_order) return {};
  return end(
      std::exchange(last_on_lane_[static_cast<std::size_t>(instruction.lane)], static_cast<int>(index)));
}

CommOutcome<void> Engine::execute(std::size_t index) {
  const Instruction& instruction = program_.instructions[index];
  weight_versions_.before_instruction(index);
  for (const int buffer : zeroed_buffers_[index])
    if (!mode_.is_forward_only) flat_buffers_[static_cast<std::size_t>(buffer)].zero_();
  switch (instruction.op) {
    case Op::load_batch:
      break;  // done by load(), before the step begins
    case Op::forward:
    case Op::recompute:
    case Op::backward_input:
    case Op::backward_weight:
      if (options_.min_duration)
        compute_with_min_duration(index);
      else
        compute(index);
      break;
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_reduce:
    case Op::ring_exchange:
      pending_[index] = begin_exchange(index);
      break;
    case Op::send:
      pending_[index] = crossings_.begin_send(index);
      break;
    case Op::receive:
      pending_[index] = crossings_.begin_receive(index);
      break;
    case Op::gather_parameters:
    case Op::reduce_gradients:
    case Op::sync_gradients:
    case Op::send_copy:
    case Op::receive_copy:
      pending_[index] = state_exchange_.begin(instruction, buffers_of(index));
      break;
    case Op::step_gate:
      return is_asynchronous(plan_.schedule) ? end_updates() : pass_gate();
    case Op::optimizer:
      is_asynchronous(plan_.schedule) ? update_immediately(instruction) : update_after_gate(index);
      break;
    case Op::dispatch:
    case Op::combine:
      ensure(false, "instruction {} is not supported", text(instruction.op));
  }
  return {};
}

CommOutcome<void> Engine::end(int index) {
  if (index < 0 || pending_[static_cast<std::size_t>(index)] == nullptr) return {};
  const auto at = static_cast<std::size_t>(index);
  std::unique_ptr<Pending> pending = std::move(pending_[at]);
  const Instruction& instruction = program_.instructions[at];
  if (CommOutcome<void> outcome = pending->wait(Deadline::after(options_.timeout, text(instruction.op)));
      !outcome) {
    outcome.error().operation +=
        fmt::format(" ({}{}, stage {})", text(instruction.op),
                    instruction.microbatch < 0 ? "" : fmt::format(", micro-batch {}", instruction.microbatch),
                    program_.location.stage);
    return outcome;
  }
  const bool belongs_to_state = instruction.lane == Lane::gather || instruction.lane == Lane::reduce,
             belongs_to_block = instruction.lane == Lane::tensor && instruction.serves != Op::receive;
  if (belongs_to_state) state_exchange_.end(instruction, buffers_of(at));
  if (belongs_to_block)
    blocks_[static_cast<std::size_t>(instruction.block)]->end_exchange(instruction, pass_of(at));
  if (instruction_log != nullptr) instruction_log->end(at, std::move(pending));
  return {};
}

StateBuffers Engine::buffers_of(std::size_t index) const {
  StateBuffers result;
  for (const Use& use : program_.uses(program_.instructions[index])) {
    const BufferKind kind = program_.buffers[static_cast<std::size_t>(use.buffer)].kind;
    at::Tensor& buffer = kind == BufferKind::exchange         ? result.exchange
                         : kind == BufferKind::copy_gradients ? result.copy_gradients
                                                              : result.whole;
    buffer = flat_buffers_[static_cast<std::size_t>(use.buffer)];
  }
  return result;
}

Pass Engine::pass_of(std::size_t index) const {
  Pass pass = passes_[index];
  pass.gradient_scale = mode_.is_forward_only ? 0 : step_loss_scale_;
  pass.is_training = !mode_.is_forward_only;
  pass.all_logits = mode_.all_logits, pass.cache = mode_.cache;
  return pass;
}

// A device may have no sequence of a small micro-batch. It then has nothing to compute, and nothing to
// exchange inside its tensor-parallel group.
void Engine::compute(std::size_t index) {
  const Instruction& instruction = program_.instructions[index];
  const Pass pass = pass_of(index);
  if (pass.microbatch->host->samples.empty()) return;
  copy_arrivals(index, pass);
  Block& block = *blocks_[static_cast<std::size_t>(instruction.block)];
  if (instruction.op == Op::forward || instruction.op == Op::recompute)
    block.forward(instruction.part, pass);
  else if (instruction.op == Op::backward_input)
    block.backward_input(instruction.part, pass);
  else
    block.backward_weight(instruction.part, pass);
}

void Engine::compute_with_min_duration(std::size_t index) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double>(options_.min_duration(program_.instructions[index]).value);
  compute(index);
  std::this_thread::sleep_until(end);
}

// Copies activations or gradients that arrived from other blocks to where the block reads them.
void Engine::copy_arrivals(std::size_t index, const Pass& pass) {
  if (!crossings_.has_arrivals(index)) return;
  const Instruction& instruction = program_.instructions[index];
  const Op op = instruction.lane == Lane::tensor ? instruction.serves : instruction.op;
  crossings_.unpack_arrivals(
      index, pass[op == Op::forward ? input_name(model_, instruction.block) : "output.gradient"]);
}

std::unique_ptr<Pending> Engine::begin_exchange(std::size_t index) {
  const Instruction& instruction = program_.instructions[index];
  const Pass pass = pass_of(index);
  if (pass.microbatch->host->samples.empty()) return nullptr;
  if (instruction.serves == Op::receive) return crossings_.begin_join(index);
  copy_arrivals(index, pass);
  const Exchange exchange =
      blocks_[static_cast<std::size_t>(instruction.block)]->begin_exchange(instruction, pass);
  const Group& group = program_.groups[static_cast<std::size_t>(instruction.group)];
  const std::string description =
      fmt::format("{} of block {}, micro-batch {}", instruction.is_backward ? "gradients" : "activations",
                  instruction.block, instruction.microbatch);
  switch (exchange.kind) {
    case Exchange::Kind::nothing:
      return nullptr;
    case Exchange::Kind::sum:
      return options_.comm->all_reduce(group, exchange.from, ReduceOp::sum, description);
    case Exchange::Kind::gather:
      return options_.comm->all_gather(group, exchange.from, exchange.to, description);
    case Exchange::Kind::scatter:
      return options_.comm->reduce_scatter(group, exchange.from, exchange.to, description);
    case Exchange::Kind::ring:
      return send_around_ring(*options_.comm, group, exchange.ring_transfers, description);
  }
  return nullptr;
}

CommOutcome<void> Engine::forward_only(const Batch& batch, const RunMode& mode) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd_dispatch;
  load(batch);
  begin_step_scalars(/*is_training=*/false);
  return run(mode);
}

CommOutcome<Evaluation> Engine::evaluate(const Batch& batch) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd_dispatch;
  if (const CommOutcome<void> outcome = forward_only(batch, {.is_forward_only = true}); !outcome)
    return tl::unexpected(outcome.error());
  if (const CommOutcome<void> outcome = sum_over_devices(); !outcome) return tl::unexpected(outcome.error());
  if (const CommOutcome<void> outcome = synchronize(); !outcome) return tl::unexpected(outcome.error());
  host_step_scalars_.copy_(step_scalars_);
  auto* step_scalars = host_step_scalars_.data_ptr<double>();
  return Evaluation{step_scalar(step_scalars, StepScalar::loss_sum),
                    std::llround(step_scalar(step_scalars, StepScalar::num_targets))};
}

at::Tensor Engine::logits(const Batch& batch, KeyValueCache* cache) {
  ensure(!model_.is_custom(), "logits are not available for custom models; evaluate their modules directly");
  ensure(batch.microbatches.size() == 1, "logits: expected 1 micro-batch, got {}", batch.microbatches.size());
  ensure(options_.comm == nullptr, "logits are available on one device only");
  const auto rows = std::ssize(batch.microbatches[0].ids);
  at::Tensor result =
      at::empty({rows, model_.vocab}, at::TensorOptions(types_.element).device(options_.device));
  ensure(forward_only(batch, {.is_forward_only = true, .all_logits = &result, .cache = cache}).has_value(),
         "a step on one device failed with a communication error");
  if (cache != nullptr) cache->advance(rows);
  return result;
}

Fp8History Engine::fp8_history() const { return fp8_ == nullptr ? Fp8History{} : fp8_->history(); }
void Engine::set_fp8_history(const Fp8History& history) {
  if (fp8_ != nullptr) fp8_->set_history(history);
}

Bytes Engine::arena_bytes() const { return Bytes(static_cast<std::int64_t>(arena_.nbytes())); }
Bytes Engine::bytes() const {
  return arena_bytes() + autograd_bytes_ + Bytes(gemm_->bytes()) + weight_versions_.bytes();
}

}  // namespace optimus
