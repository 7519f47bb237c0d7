// See engine.h.
#include "engine/engine.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "engine/cache.h"
#include "model/rope.h"
#include "plan/validate.h"
#include "schedule/sizes.h"

namespace optimus {
namespace {

Plan runnable(const Plan& plan, const ModelSpec& model) {
  validate(plan, model, "the plan");
  if (model.is_mixture())
    throw UserError("{} is a mixture of experts: it can be planned and simulated, not trained yet",
                    model.name);
  if (num_devices(plan) != 1)
    throw UserError("the plan needs {} devices; plans of one device can be run today", num_devices(plan));
  if (is_asynchronous(plan.schedule))
    throw UserError("schedule {}: synchronous schedules can be run today", text(plan.schedule));
  return plan;
}

// [positions, head_dim / 2]
std::pair<at::Tensor, at::Tensor> rope_tables(const ModelSpec& model, std::int64_t positions,
                                              ElementTypes types, at::Device device) {
  if (model.positions != PositionKind::rope || model.is_custom()) return {};
  const std::vector<double> frequencies = rope_frequencies(model);
  const auto half = std::ssize(frequencies);
  at::Tensor cosine = at::empty({positions, half}, at::kDouble),
             sine = at::empty({positions, half}, at::kDouble);
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * frequencies[static_cast<std::size_t>(i)];
      cosine.data_ptr<double>()[p * half + i] = std::cos(angle);
      sine.data_ptr<double>()[p * half + i] = std::sin(angle);
    }
  const at::TensorOptions options = at::TensorOptions(types.wide).device(device);
  return {cosine.to(options), sine.to(options)};
}

Slab slab_of(const DeviceSizes& sizes, const Buffer& buffer, int sequences) {
  switch (buffer.kind) {
    case BufferKind::kept_activations:
      return sizes.kept(buffer.block, sequences);
    case BufferKind::passing_activations:
      return sizes.passing(buffer.block, sequences);
    case BufferKind::kept_gradients:
      return sizes.gradients(buffer.block, sequences);
    case BufferKind::passing_gradients:
      return sizes.passing_gradients(buffer.block, sequences);
    case BufferKind::logits:
      return sizes.logits(buffer.block, sequences);
    case BufferKind::weights:
    case BufferKind::gathered_weights:
    case BufferKind::stashed_weights:
    case BufferKind::gradients:
    case BufferKind::optimizer_state:
    case BufferKind::buddy_state:
    case BufferKind::whole_gradients:
    case BufferKind::boundary:
    case BufferKind::graph:
    case BufferKind::graph_work:
      return {};
  }
  return {};
}

}  // namespace

void LossScale::update(bool is_finite) {
  constexpr std::int64_t kGoodSteps = 1000;
  if (!is_finite) {
    value = std::max(1.0, value / 2), num_good = 0;
  } else if (++num_good == kGoodSteps) {
    value = std::min(0x1p24, value * 2), num_good = 0;
  }
}

Engine::Engine(const Plan& plan, const ModelSpec& model, Parameters& parameters, const EngineOptions& options)
    : plan_(runnable(plan, model)),
      model_(model),
      parameters_(parameters),
      options_(options),
      types_(types_of(plan.precision)),
      program_(compile(plan_, model_, plan_.pipelines[0].stages[0].devices[0])),
      kernels_(make_kernels(options.device)),
      attention_(make_attention(options.device, types_.element)),
      products_(make_products(options.device, types_.element, options.product_record)),
      tools_{model_, types_, *kernels_, *attention_, *products_, {}, {}},
      recording_(options.device) {
  std::tie(tools_.cosine, tools_.sine) =
      rope_tables(model_, std::max(plan_.sequence_length, options.num_positions), types_, options.device);
  const Stage& stage = plan_.pipelines[0].stages[0];
  for (int block = 0; block < plan_.num_blocks; ++block) switch (block_kind(model_, block)) {
      case BlockKind::embedding:
        blocks_.push_back(make_embedding_block(tools_, parameters));
        break;
      case BlockKind::layer:
        blocks_.push_back(make_layer_block(tools_, parameters, block, strategy_of(stage, block)));
        break;
      case BlockKind::head:
        blocks_.push_back(make_head_block(tools_, parameters));
        break;
      case BlockKind::custom:
        ensure(options.make_custom_block != nullptr, "an engine for custom blocks without them");
        blocks_.push_back(options.make_custom_block(block, strategy_of(stage, block).recompute));
        break;
    }
  make_passes();
  mark_first_passes();
}

Engine::~Engine() = default;

void Engine::make_passes() {
  const Arena planned = plan_arena(program_);
  outside_ = planned.outside;
  arena_ = at::empty({planned.bytes.value}, at::TensorOptions(at::kByte).device(options_.device));
  numbers_ = at::zeros({kNumStepNumbers}, at::TensorOptions(at::kDouble).device(options_.device));
  host_numbers_ =
      at::zeros({kNumStepNumbers}, at::TensorOptions(at::kDouble).pinned_memory(options_.device.is_cuda()));
  loss_sum_ = numbers_.narrow(0, static_cast<int>(StepNumber::loss_sum), 1);
  square_sum_ = numbers_.narrow(0, static_cast<int>(StepNumber::square_sum), 1);
  const DeviceSizes sizes(plan_, model_, program_.seat);
  const std::vector<int>& sequences = plan_.pipelines[0].microbatches;
  slabs_.resize(program_.buffers.size());
  for (std::size_t b = 0; b < program_.buffers.size(); ++b) {
    const Buffer& buffer = program_.buffers[b];
    if (planned.offsets[b] < 0 || buffer.microbatch < 0) continue;
    const Slab slab = slab_of(sizes, buffer, sequences[static_cast<std::size_t>(buffer.microbatch)]);
    slabs_[b] = SlabTensors(slab, arena_.narrow(0, planned.offsets[b], buffer.bytes.value), types_);
  }
  microbatches_.resize(sequences.size());
  for (const Instruction& instruction : program_.instructions) {
    Pass& pass = passes_.emplace_back();
    if (instruction.microbatch >= 0)
      pass.microbatch = &microbatches_[static_cast<std::size_t>(instruction.microbatch)];
    pass.sequence_length = plan_.sequence_length;
    pass.dropout = RandomKey(static_cast<std::uint64_t>(options_.seed)).with("dropout");
    pass.is_recompute = instruction.op == Op::recompute;
    pass.loss = &loss_sum_;
    for (const Use& use : program_.uses(instruction)) {
      const Buffer& buffer = program_.buffers[static_cast<std::size_t>(use.buffer)];
      const SlabTensors& slab = slabs_[static_cast<std::size_t>(use.buffer)];
      if (buffer.block == instruction.block)
        pass.slabs.push_back(&slab);
      else if (buffer.block > instruction.block)
        pass.next = slab.find(input_name(model_, buffer.block));
      else
        pass.below = slab.find("output.gradient");
    }
  }
}

// The first weight gradient of a block in a step is written over what the last step left; the rest is cleared.
void Engine::mark_first_passes() {
  std::set<std::pair<int, Part>> seen;
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& next = program_.instructions[i];
    if (next.op != Op::forward && next.op != Op::backward_weight) continue;
    const bool is_head = block_kind(model_, next.block) == BlockKind::head;
    if (next.op == (is_head ? Op::forward : Op::backward_weight))
      passes_[i].is_first = seen.emplace(next.block, next.part).second;
  }
  std::vector<std::pair<char*, char*>> written;
  for (const std::unique_ptr<Block>& block : blocks_)
    for (const at::Tensor& sums : block->first_written())
      if (sums.defined())
        written.emplace_back(static_cast<char*>(sums.data_ptr()),
                             static_cast<char*>(sums.data_ptr()) + sums.nbytes());
  std::sort(written.begin(), written.end());
  for (int b = 0; b < parameters_.num_blocks(); ++b) {
    const at::Tensor& flat = parameters_.block(b).gradients;
    if (!flat.defined()) continue;
    const auto element = static_cast<std::int64_t>(flat.element_size());
    char *const begin = static_cast<char*>(flat.data_ptr()), *const end = begin + flat.nbytes();
    const auto clear = [&](char* from, char* to) {
      if (from < to) cleared_.push_back(flat.narrow(0, (from - begin) / element, (to - from) / element));
    };
    char* done = begin;
    for (const auto& [from, to] : written)
      if (from >= begin && from < end) clear(done, from), done = std::max(done, to);
    clear(done, end);
  }
}

StepReport Engine::train_step(const Batch& batch, const UpdateOptions& options) {
  const at::AutoDispatchBelowAutograd no_autograd;
  load(batch);
  update_ = options;
  scale_ = plan_.precision == Precision::fp16 ? loss_scale.value : 1;
  begin_numbers();
  if (can_record(batch))
    recording_.run(
        {scale_, update_.beta1, update_.beta2, update_.epsilon, update_.weight_decay, update_.clip},
        [&] { run_program(); });
  else
    run_program();
  return end_step(batch);
}

void Engine::run_program() {
  for (at::Tensor& sums : cleared_) sums.zero_();
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) execute(program_.instructions[i], i);
}

// Not with what changes from step to step and reaches kernels as an argument (keys of dropout, segments), nor with autograd.
bool Engine::can_record(const Batch& batch) const {
  if (!options_.records_steps || !options_.device.is_cuda() || model_.is_custom()) return false;
  if (model_.embedding_dropout > 0 || model_.hidden_dropout > 0 || model_.attention_dropout > 0) return false;
  for (const Microbatch& microbatch : batch.microbatches)
    if (!microbatch.segments.empty()) return false;
  return true;
}

std::string Engine::recording_note() const {
  if (recording_.is_recorded()) return "steps are replayed from a recording";
  return recording_.failure().empty() ? "steps are not recorded" : recording_.failure();
}

// Here, and only here, a step waits for the device.
StepReport Engine::end_step(const Batch& batch) {
  host_numbers_.copy_(numbers_);
  auto* numbers = host_numbers_.data_ptr<double>();
  const bool is_finite = number(numbers, StepNumber::is_finite) != 0;
  num_updates = static_cast<std::int64_t>(number(numbers, StepNumber::num_updates));
  StepReport report{.loss = number(numbers, StepNumber::loss_sum) /
                            static_cast<double>(std::max<std::int64_t>(1, batch.num_counted)),
                    .grad_norm = number(numbers, StepNumber::grad_norm),
                    .num_tokens = batch.num_tokens,
                    .num_counted = batch.num_counted,
                    .is_skipped = !is_finite};
  if (plan_.precision == Precision::fp16) {
    report.loss_scale = scale_;
    if (num_counted_ > 0) loss_scale.update(is_finite);
  }
  return report;
}

void Engine::begin_numbers() {
  host_numbers_.zero_();
  auto* numbers = host_numbers_.data_ptr<double>();
  number(numbers, StepNumber::learning_rate) = update_.learning_rate;
  number(numbers, StepNumber::num_counted) = static_cast<double>(num_counted_);
  number(numbers, StepNumber::loss_scale) = scale_;
  number(numbers, StepNumber::num_updates) = static_cast<double>(num_updates);
  numbers_.copy_(host_numbers_, /*non_blocking=*/true);
}

void Engine::load(const Batch& batch) {
  ensure(batch.microbatches.size() == microbatches_.size() && batch.sequence_length == plan_.sequence_length,
         "a batch of {} micro-batches of length {}", batch.microbatches.size(), batch.sequence_length);
  num_counted_ = batch.num_counted;
  // On the processor the batch's own memory is used, elsewhere a tensor that stays in its place.
  const auto put = [&](const auto& values, at::ScalarType type, at::Tensor& to) {
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
    DeviceMicrobatch& here = microbatches_[m];
    here.host = &host;
    put(host.ids, at::kLong, here.ids), put(host.targets, at::kLong, here.targets);
    put(host.positions, at::kInt, here.positions);
  }
  for (Pass& pass : passes_) pass.step = batch.step;
}

void Engine::execute(const Instruction& next, std::size_t index) {
  switch (next.op) {
    case Op::load_batch:
      return;  // done before the step begins
    case Op::forward:
    case Op::recompute:
    case Op::backward_input:
    case Op::backward_weight:
      return compute(next, passes_[index]);
    case Op::step_gate:
      return pass_gate();
    case Op::optimizer:
      return update_block(next.block);
    case Op::send:
    case Op::receive:
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_reduce:
    case Op::ring_exchange:
    case Op::dispatch:
    case Op::combine:
    case Op::gather_parameters:
    case Op::reduce_gradients:
    case Op::sync_gradients:
    case Op::send_buddy:
    case Op::receive_buddy:
      ensure(false, "{} in a program of one device", text(next.op));
  }
}

void Engine::compute(const Instruction& next, Pass& pass) {
  Block& block = *blocks_[static_cast<std::size_t>(next.block)];
  pass.gradient_scale = scale_;
  if (next.op == Op::forward || next.op == Op::recompute)
    block.forward(next.part, pass);
  else if (next.op == Op::backward_input)
    block.backward_input(next.part, pass);
  else
    block.backward_weight(next.part, pass);
}

// Each element of the gradient is on this device once. What comes of it stays on the device.
void Engine::pass_gate() {
  for (int block = 0; block < parameters_.num_blocks(); ++block)
    if (parameters_.block(block).gradients.defined())
      kernels_->add_square_sum(parameters_.block(block).gradients, square_sum_);
  kernels_->pass_gate({update_.beta1, update_.beta2, update_.clip}, numbers_);
}

void Engine::update_block(int block) {
  BlockState& state = parameters_.block(block);
  if (!state.weights.defined()) return;
  AdamOptions adam{.beta1 = update_.beta1, .beta2 = update_.beta2, .epsilon = update_.epsilon};
  for (const Parameters::Segment& segment : parameters_.segments(block)) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, segment.begin, segment.end - segment.begin);
    };
    adam.weight_decay = segment.has_weight_decay ? update_.weight_decay : 0;
    at::Tensor masters = part(state.masters), first = part(state.first), second = part(state.second),
               weights = part(state.weights);
    kernels_->adamw(adam, numbers_, part(state.gradients), masters, first, second, weights);
  }
}

void Engine::forward_only(const Batch& batch, at::Tensor* all_logits, KeyValueCache* cache) {
  const at::AutoDispatchBelowAutograd no_autograd;
  load(batch);
  loss_sum_.zero_();
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    if (program_.instructions[i].op != Op::forward) continue;
    Pass pass = passes_[i];
    pass.is_training = false, pass.gradient_scale = 0;
    pass.all_logits = all_logits, pass.cache = cache;
    blocks_[static_cast<std::size_t>(program_.instructions[i].block)]->forward(program_.instructions[i].part,
                                                                               pass);
  }
}

double Engine::evaluate(const Batch& batch) {
  forward_only(batch, nullptr, nullptr);
  return loss_sum_.item<double>();
}

at::Tensor Engine::logits(const Batch& batch, KeyValueCache* cache) {
  ensure(!model_.is_custom(), "logits of a custom model: its modules give them");
  ensure(batch.microbatches.size() == 1, "logits of {} micro-batches", batch.microbatches.size());
  const auto rows = std::ssize(batch.microbatches[0].ids);
  at::Tensor result =
      at::empty({rows, model_.vocab}, at::TensorOptions(types_.element).device(options_.device));
  forward_only(batch, &result, cache);
  if (cache != nullptr) cache->advance(rows);
  return result;
}

Bytes Engine::arena_bytes() const { return Bytes(static_cast<std::int64_t>(arena_.nbytes())); }
Bytes Engine::bytes() const { return arena_bytes() + outside_ + Bytes(products_->bytes()); }

}  // namespace optimus
