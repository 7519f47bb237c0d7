// See engine.h.
#include "engine/engine.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "engine/cache.h"
#include "model/rope.h"
#include "plan/validate.h"
#include "schedule/order.h"
#include "schedule/sizes.h"

namespace optimus {
namespace {

const Stage& stage_at(const Plan& plan, const Seat& seat) {
  return plan.pipelines[static_cast<std::size_t>(seat.pipeline)].stages[static_cast<std::size_t>(seat.stage)];
}

Plan runnable(const Plan& plan, const ModelSpec& model, const EngineOptions& options) {
  ensure_engine_supports(plan, model);
  ensure(num_devices(plan) == 1 || options.comm != nullptr, "a plan of {} devices without a Comm",
         num_devices(plan));
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
    case BufferKind::exchange:
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

Group world_of(const Plan& plan, int num_ranks) {
  Group world;
  if (num_devices(plan) == num_ranks) return world;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      world.members.insert(world.members.end(), stage.devices.begin(), stage.devices.end());
  std::sort(world.members.begin(), world.members.end());
  return world;
}

std::vector<Group> Engine::groups() const {
  std::vector<Group> result = program_.groups;
  for (Group& group : result)
    if (group.role == Role::world) group = world_;
  return result;
}

void ensure_engine_supports(const Plan& plan, const ModelSpec& model) {
  validate(plan, model, "the plan");
  if (model.is_mixture())
    throw UserError("{} is a mixture of experts: it can be planned and simulated, not trained yet",
                    model.name);
  if (is_asynchronous(plan.schedule))
    throw UserError("schedule {}: synchronous schedules can be run today", text(plan.schedule));
  if (plan.pipelines.size() != 1 || plan.pipelines[0].stages.size() != 1)
    throw UserError("the plan has {} pipelines of up to {} stages; one stage can be run today, use --pp 1",
                    plan.pipelines.size(), plan.pipelines[0].stages.size());
  if (plan.buddy > 0)
    throw UserError("buddy {}: copies of sharded state cannot be kept yet, use 0", plan.buddy);
  if (bytes_of(plan.accumulators) < 4)
    throw UserError("accumulators of {}: gradients are added up in fp32, use that", text(plan.accumulators));
  const Stage& stage = plan.pipelines[0].stages[0];
  const LayerStrategy& first = strategy_of(stage, 0);
  for (const Chunk& chunk : stage.chunks)
    for (const BlockRun& run : chunk.runs) {
      const LayerStrategy& s = run.strategy;
      if (s.cp > 1) throw UserError("cp {}: context parallelism cannot be run yet, use 1", s.cp);
      // What autograd keeps of weights must be where it was when the backward comes.
      const bool is_kept_by_autograd = model.is_custom() && s.zero == 3 && plan.num_blocks > 1;
      if (is_kept_by_autograd && s.recompute != RecomputeMode::full)
        throw UserError("zero 3 of a model of modules needs --recompute full, or use zero 2");
      if (s.offload) throw UserError("offload: optimizer state cannot be kept in host memory yet");
      if (s.tp != first.tp || s.sequence_parallel != first.sequence_parallel || s.zero != first.zero ||
          s.shard_group != first.shard_group)
        throw UserError("blocks 0 and {} are split differently; one split of all blocks can be run today",
                        run.first);
    }
}

Engine::Engine(const Plan& plan, const ModelSpec& model, Parameters& parameters, const EngineOptions& options)
    : plan_(runnable(plan, model, options)),
      model_(model),
      parameters_(parameters),
      options_(options),
      types_(types_of(plan.precision)),
      program_(compile(plan_, model_,
                       options.comm == nullptr ? plan_.pipelines[0].stages[0].devices[0] : options.rank)),
      world_(world_of(plan_, options.comm == nullptr ? 1 : options.comm->size())),
      stage_(stage_at(plan_, program_.seat)),
      kernels_(make_kernels(options.device)),
      attention_(make_attention(options.device, types_.element)),
      products_(make_products(options.device, types_.element, options.product_record)),
      tools_{model_, types_, *kernels_, *attention_, *products_, {}, {}},
      state_(plan_, model_, program_, parameters, options.comm),
      recording_(options.device) {
  std::tie(tools_.cosine, tools_.sine) =
      rope_tables(model_, std::max(plan_.sequence_length, options.num_positions), types_, options.device);
  make_blocks();
  make_memory();
  make_passes();
  mark_first_passes();
}

Engine::~Engine() = default;

void Engine::make_blocks() {
  blocks_.resize(static_cast<std::size_t>(plan_.num_blocks));
  for (const Chunk& chunk : stage_.chunks)
    for (int block = chunk.first(); block < chunk.end(); ++block) {
      const LayerStrategy& strategy = strategy_of(stage_, block);
      const TensorPart part = tensor_part(model_, strategy, program_.seat.index);
      std::unique_ptr<Block>& made = blocks_[static_cast<std::size_t>(block)];
      switch (block_kind(model_, block)) {
        case BlockKind::embedding:
          made = make_embedding_block(tools_, part);
          break;
        case BlockKind::layer:
          made = make_layer_block(tools_, block, strategy, part);
          break;
        case BlockKind::head:
          made = make_head_block(tools_, part);
          break;
        case BlockKind::custom:
          ensure(options_.make_custom_block != nullptr, "an engine for custom blocks without them");
          made = options_.make_custom_block(block, strategy.recompute);
          break;
      }
    }
}

void Engine::make_memory() {
  const Arena planned = plan_arena(program_);
  outside_ = planned.outside;
  arena_ = at::empty({planned.bytes.value}, at::TensorOptions(at::kByte).device(options_.device));
  numbers_ = at::zeros({kNumStepNumbers}, at::TensorOptions(at::kDouble).device(options_.device));
  host_numbers_ =
      at::zeros({kNumStepNumbers}, at::TensorOptions(at::kDouble).pinned_memory(options_.device.is_cuda()));
  loss_sum_ = numbers_.narrow(0, static_cast<int>(StepNumber::loss_sum), 1);
  square_sum_ = numbers_.narrow(0, static_cast<int>(StepNumber::square_sum), 1);
  const DeviceSizes sizes(plan_, model_, program_.seat);
  const std::vector<int>& sequences =
      plan_.pipelines[static_cast<std::size_t>(program_.seat.pipeline)].microbatches;
  slabs_.resize(program_.buffers.size()), flats_.resize(program_.buffers.size());
  for (std::size_t b = 0; b < program_.buffers.size(); ++b) {
    const Buffer& buffer = program_.buffers[b];
    if (planned.offsets[b] < 0) continue;
    const at::Tensor memory = arena_.narrow(0, planned.offsets[b], buffer.bytes.value);
    if (buffer.kind == BufferKind::gathered_weights || buffer.kind == BufferKind::whole_gradients ||
        buffer.kind == BufferKind::exchange)
      flats_[b] = memory;
    else if (buffer.microbatch >= 0)
      slabs_[b] = SlabTensors(slab_of(sizes, buffer, sequences[static_cast<std::size_t>(buffer.microbatch)]),
                              memory, types_);
  }
  microbatches_.resize(sequences.size());
}

// A flat tensor inside a buffer of bytes.
at::Tensor Engine::flat(int buffer, std::int64_t offset, std::int64_t count, at::ScalarType type) const {
  const auto width = static_cast<std::int64_t>(at::elementSize(type));
  return flats_[static_cast<std::size_t>(buffer)].narrow(0, offset * width, count * width).view(type);
}

// The whole weights or gradients of a block: in a buffer of the step, or where they always are; undefined where neither is.
at::Tensor Engine::whole(int block, int buffer, StateKind kind) const {
  const BlockShape& shape = parameters_.shape(block);
  const bool is_weights = kind == StateKind::weights;
  if (buffer >= 0) return flat(buffer, 0, shape.whole_elements, is_weights ? types_.element : types_.wide);
  if (shape.is_sharded(kind)) return {};
  return is_weights ? parameters_.block(block).weights : parameters_.block(block).gradients;
}

// Made once for each set of buffers that a block's tensors lie in.
const BlockViews* Engine::views(const ViewKey& key) {
  const BlockViews*& found = known_views_[key];
  if (found != nullptr) return found;
  BlockViews made;
  if (!parameters_.shape(key.block).tensors.empty())
    made = parameters_.views(key.block, whole(key.block, key.weights, StateKind::weights),
                             whole(key.block, key.gradients, StateKind::gradients));
  if (block_kind(model_, key.block) == BlockKind::head && model_.is_tied) {
    constexpr const char* kWords = "embedding.words.weight";
    WeightView words = parameters_.views(0, whole(0, -1, StateKind::weights),
                                         whole(0, key.tied, StateKind::gradients))[kWords];
    if (key.weights >= 0) {
      const std::int64_t rows =
          tensor_part(model_, strategy_of(stage_, key.block), program_.seat.index).vocab.size();
      words.weight = flat(key.weights, state_.tied_offset(), rows * model_.hidden, types_.element)
                         .view({rows, model_.hidden});
    }
    made.add(kWords, words);
  }
  views_.push_back(std::make_unique<BlockViews>(std::move(made)));
  return found = views_.back().get();
}

// Each instruction with what it works on.
void Engine::make_passes() {
  const StagePosition position{program_.seat.stage, static_cast<int>(plan_.pipelines[0].stages.size()),
                               static_cast<int>(microbatches_.size()),
                               static_cast<int>(stage_.chunks.size())};
  const std::vector<Slot> slots = order_of(plan_.schedule, position);
  std::vector<bool> is_cleared(program_.buffers.size());
  cleared_.resize(program_.instructions.size());
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    Pass& pass = passes_.emplace_back();
    is_forward_.push_back(instruction.slot >= 0 &&
                          slots[static_cast<std::size_t>(instruction.slot)].work == Work::forward);
    if (instruction.microbatch >= 0)
      pass.microbatch = &microbatches_[static_cast<std::size_t>(instruction.microbatch)];
    pass.sequence_length = plan_.sequence_length;
    pass.dropout = RandomKey(static_cast<std::uint64_t>(options_.seed)).with("dropout");
    pass.is_recompute = instruction.op == Op::recompute ||
                        (instruction.lane == Lane::tensor && instruction.serves == Op::recompute);
    pass.loss = &loss_sum_;
    const ViewKey key = add_buffers(instruction, pass);
    for (const int buffer : {key.gradients, key.tied})
      if (buffer >= 0 && !is_cleared[static_cast<std::size_t>(buffer)]) {
        cleared_[i].push_back(buffer);
        is_cleared[static_cast<std::size_t>(buffer)] = true;
      }
    const bool is_of_block = instruction.lane == Lane::compute || instruction.lane == Lane::tensor;
    if (is_of_block && instruction.op != Op::optimizer) pass.weights = views(key);
  }
}

// The slabs of an instruction; and the buffers of weights and gradients on their way that it uses.
Engine::ViewKey Engine::add_buffers(const Instruction& instruction, Pass& pass) const {
  ViewKey key{.block = instruction.block};
  for (const Use& use : program_.uses(instruction)) {
    const Buffer& buffer = program_.buffers[static_cast<std::size_t>(use.buffer)];
    const SlabTensors& slab = slabs_[static_cast<std::size_t>(use.buffer)];
    const bool is_own = buffer.block == instruction.block;
    if (buffer.kind == BufferKind::gathered_weights)
      key.weights = use.buffer;
    else if (buffer.kind == BufferKind::whole_gradients)
      (is_own ? key.gradients : key.tied) = use.buffer;
    else if (buffer.kind == BufferKind::exchange)
      continue;
    else if (is_own)
      pass.slabs.push_back(&slab);
    else if (buffer.block > instruction.block)
      pass.next = slab.find(input_name(model_, buffer.block));
    else
      pass.below = slab.find("output.gradient");
  }
  return key;
}

// The first weight gradient of a block in a step is written over what the last step left; the rest is cleared. Not where
// gradients are on their way to shards, and not where a device may have nothing to compute in the first micro-batch.
void Engine::mark_first_passes() {
  const std::vector<int>& sizes =
      plan_.pipelines[static_cast<std::size_t>(program_.seat.pipeline)].microbatches;
  const bool has_work = own_sequences(plan_, program_.device, sizes.front()).size() > 0;
  std::set<std::pair<int, Part>> seen;
  std::vector<at::Tensor> written;
  for (std::size_t i = 0; i < program_.instructions.size() && has_work; ++i) {
    const Instruction& next = program_.instructions[i];
    if (next.lane != Lane::compute || next.op == Op::optimizer) continue;
    const bool is_head = block_kind(model_, next.block) == BlockKind::head,
               is_alone = strategy_of(stage_, next.block).tp == 1;
    const Op first = !is_head ? Op::backward_weight : is_alone ? Op::forward : Op::backward_input;
    if (next.op != first || parameters_.shape(next.block).is_sharded(StateKind::gradients)) continue;
    if (!seen.emplace(next.block, next.part).second) continue;
    passes_[i].is_first = true;
    for (const std::string& name : blocks_[static_cast<std::size_t>(next.block)]->first_written())
      if (const at::Tensor& sums = (*passes_[i].weights)[name].gradient; sums.defined())
        written.push_back(sums);
  }
  clear_between(written);
}

void Engine::clear_between(const std::vector<at::Tensor>& written) {
  std::vector<std::pair<char*, char*>> ranges;
  for (const at::Tensor& sums : written)
    ranges.emplace_back(static_cast<char*>(sums.data_ptr()),
                        static_cast<char*>(sums.data_ptr()) + sums.nbytes());
  std::sort(ranges.begin(), ranges.end());
  for (int b = 0; b < parameters_.num_blocks(); ++b) {
    const at::Tensor& flat = parameters_.block(b).gradients;
    if (!flat.defined()) continue;
    const auto element = static_cast<std::int64_t>(flat.element_size());
    char *const begin = static_cast<char*>(flat.data_ptr()), *const end = begin + flat.nbytes();
    const auto clear = [&](char* from, char* to) {
      if (from < to) cleared_sums_.push_back(flat.narrow(0, (from - begin) / element, (to - from) / element));
    };
    char* done = begin;
    for (const auto& [from, to] : ranges)
      if (from >= begin && from < end) clear(done, from), done = std::max(done, to);
    clear(done, end);
  }
}

CommOutcome<StepReport> Engine::train_step(const Batch& batch, const UpdateOptions& options) {
  const at::AutoDispatchBelowAutograd no_autograd;
  load(batch);
  update_ = options;
  scale_ = plan_.precision == Precision::fp16 ? loss_scale.value : 1;
  begin_numbers();
  CommOutcome<void> done;
  const auto work = [&] { done = run({}); };
  if (can_record(batch))
    recording_.run(
        {scale_, update_.beta1, update_.beta2, update_.epsilon, update_.weight_decay, update_.clip}, work);
  else
    work();
  if (!done) return tl::unexpected(done.error());
  if (done = settle(); !done) return tl::unexpected(done.error());
  return end_step();
}

// Not with what changes from step to step and reaches kernels as an argument (keys of dropout, segments), nor with autograd or
// other devices.
bool Engine::can_record(const Batch& batch) const {
  if (!options_.records_steps || !options_.device.is_cuda() || model_.is_custom() || options_.comm != nullptr)
    return false;
  if (model_.embedding_dropout > 0 || model_.hidden_dropout > 0 || model_.attention_dropout > 0) return false;
  for (const Microbatch& microbatch : batch.microbatches)
    if (!microbatch.segments.empty()) return false;
  return true;
}

std::string Engine::recording_note() const {
  if (recording_.is_recorded()) return "steps are replayed from a recording";
  return recording_.failure().empty() ? "steps are not recorded" : recording_.failure();
}

// Tensor parts have seen the same tokens; the first of them counts them.
void Engine::begin_numbers() {
  const bool is_first = program_.seat.index % strategy_of(stage_, plan_.num_blocks - 1).tp == 0;
  host_numbers_.zero_();
  auto* numbers = host_numbers_.data_ptr<double>();
  number(numbers, StepNumber::learning_rate) = update_.learning_rate;
  number(numbers, StepNumber::loss_scale) = scale_;
  number(numbers, StepNumber::num_updates) = static_cast<double>(num_updates);
  number(numbers, StepNumber::num_counted) = is_first ? static_cast<double>(num_counted_) : 0;
  number(numbers, StepNumber::num_tokens) = is_first ? static_cast<double>(num_tokens_) : 0;
  numbers_.copy_(host_numbers_, /*non_blocking=*/true);
}

// Here, and only here, a step waits for the device.
StepReport Engine::end_step() {
  host_numbers_.copy_(numbers_);
  auto* numbers = host_numbers_.data_ptr<double>();
  const bool is_finite = number(numbers, StepNumber::is_finite) != 0;
  num_updates = std::llround(number(numbers, StepNumber::num_updates));
  const double counted = number(numbers, StepNumber::num_counted);
  StepReport report{.loss = number(numbers, StepNumber::loss_sum) / std::max(1.0, counted),
                    .grad_norm = number(numbers, StepNumber::grad_norm),
                    .num_tokens = std::llround(number(numbers, StepNumber::num_tokens)),
                    .num_counted = std::llround(counted),
                    .is_skipped = !is_finite};
  if (plan_.precision == Precision::fp16) {
    report.loss_scale = scale_;
    if (counted > 0) loss_scale.update(is_finite);
  }
  return report;
}

void Engine::load(const Batch& batch) {
  ensure(batch.microbatches.size() == microbatches_.size() && batch.sequence_length == plan_.sequence_length,
         "a batch of {} micro-batches of length {}", batch.microbatches.size(), batch.sequence_length);
  num_counted_ = batch.num_counted, num_tokens_ = batch.num_tokens;
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

// In the order of the list. What is begun is ended before something waits for it, before the next on its lane, or at the end.
CommOutcome<void> Engine::run(const Run& how) {
  how_ = how;
  if (!how.is_forward_only)
    for (at::Tensor& sums : cleared_sums_) sums.zero_();
  under_way_.resize(program_.instructions.size());
  last_on_lane_.assign(6, -1);
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    // Also before what is left out: buffers are planned to be free from there on.
    if (CommOutcome<void> done = end_before(i); !done) return done;
    if (how.is_forward_only && !is_forward_[i]) continue;
    if (CommOutcome<void> done = execute(i); !done) return done;
  }
  for (std::size_t i = 0; i < under_way_.size(); ++i)
    if (CommOutcome<void> done = end(static_cast<int>(i)); !done) return done;
  return {};
}

CommOutcome<void> Engine::end_before(std::size_t index) {
  const Instruction& next = program_.instructions[index];
  for (const int wait : program_.waits(next))
    if (CommOutcome<void> done = end(wait); !done) return done;
  if (next.lane == Lane::compute || next.lane == Lane::host) return {};
  return end(std::exchange(last_on_lane_[static_cast<std::size_t>(next.lane)], static_cast<int>(index)));
}

CommOutcome<void> Engine::execute(std::size_t index) {
  const Instruction& next = program_.instructions[index];
  for (const int buffer : cleared_[index])
    if (!how_.is_forward_only) flats_[static_cast<std::size_t>(buffer)].zero_();
  switch (next.op) {
    case Op::load_batch:
      break;  // done before the step begins
    case Op::forward:
    case Op::recompute:
    case Op::backward_input:
    case Op::backward_weight:
      compute(next, pass_of(index));
      break;
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_reduce:
      under_way_[index] = begin_exchange(next, pass_of(index));
      break;
    case Op::gather_parameters:
    case Op::reduce_gradients:
      under_way_[index] = state_.begin(next, buffers_of(index));
      break;
    case Op::step_gate:
      return pass_gate();
    case Op::optimizer:
      update_block(next.block);
      break;
    case Op::send:
    case Op::receive:
    case Op::ring_exchange:
    case Op::dispatch:
    case Op::combine:
    case Op::sync_gradients:
    case Op::send_buddy:
    case Op::receive_buddy:
      ensure(false, "{} in a program of one stage", text(next.op));
  }
  return {};
}

CommOutcome<void> Engine::end(int index) {
  if (index < 0 || under_way_[static_cast<std::size_t>(index)] == nullptr) return {};
  const auto at = static_cast<std::size_t>(index);
  const std::unique_ptr<Pending> pending = std::move(under_way_[at]);
  const Instruction& ended = program_.instructions[at];
  if (CommOutcome<void> done = pending->wait(Deadline::after(options_.patience, text(ended.op))); !done)
    return done;
  if (ended.lane == Lane::tensor)
    blocks_[static_cast<std::size_t>(ended.block)]->end_exchange(ended, pass_of(at));
  else
    state_.end(ended, buffers_of(at));
  return {};
}

StateBuffers Engine::buffers_of(std::size_t index) const {
  StateBuffers result;
  for (const Use& use : program_.uses(program_.instructions[index])) {
    const BufferKind kind = program_.buffers[static_cast<std::size_t>(use.buffer)].kind;
    (kind == BufferKind::exchange ? result.room : result.whole) =
        flats_[static_cast<std::size_t>(use.buffer)];
  }
  return result;
}

Pass Engine::pass_of(std::size_t index) const {
  Pass pass = passes_[index];
  pass.gradient_scale = how_.is_forward_only ? 0 : scale_;
  pass.is_training = !how_.is_forward_only;
  pass.all_logits = how_.all_logits, pass.cache = how_.cache;
  return pass;
}

// A device may have no sequence of a small micro-batch; then it has nothing to compute or to exchange inside its tensor group.
void Engine::compute(const Instruction& next, const Pass& pass) {
  if (pass.microbatch->host->samples.empty()) return;
  Block& block = *blocks_[static_cast<std::size_t>(next.block)];
  if (next.op == Op::forward || next.op == Op::recompute)
    block.forward(next.part, pass);
  else if (next.op == Op::backward_input)
    block.backward_input(next.part, pass);
  else
    block.backward_weight(next.part, pass);
}

std::unique_ptr<Pending> Engine::begin_exchange(const Instruction& next, const Pass& pass) {
  if (pass.microbatch->host->samples.empty()) return nullptr;
  const Exchange exchange = blocks_[static_cast<std::size_t>(next.block)]->begin_exchange(next, pass);
  const Group& group = program_.groups[static_cast<std::size_t>(next.group)];
  const std::string what =
      fmt::format("{} of block {}, micro-batch {}", next.is_backward ? "gradients" : "activations",
                  next.block, next.microbatch);
  switch (exchange.kind) {
    case Exchange::Kind::nothing:
      return nullptr;
    case Exchange::Kind::sum:
      return options_.comm->all_reduce(group, exchange.from, Sum::sum, what);
    case Exchange::Kind::gather:
      return options_.comm->all_gather(group, exchange.from, exchange.to, what);
    case Exchange::Kind::scatter:
      return options_.comm->reduce_scatter(group, exchange.from, exchange.to, what);
  }
  return nullptr;
}

// What every device has seen of the step, added up. Stays on the device.
CommOutcome<void> Engine::sum_over_devices() {
  if (options_.comm == nullptr) return {};
  const std::unique_ptr<Pending> sum = options_.comm->all_reduce(
      world_, numbers_.narrow(0, static_cast<int>(kFirstSum), kNumSums), Sum::sum, "loss and gradient norm");
  return sum->wait(Deadline::after(options_.patience, "step_gate"));
}

// Nothing that was computed counts before all that came from others has ended well.
CommOutcome<void> Engine::settle() {
  if (options_.comm == nullptr) return {};
  return options_.comm->settle(Deadline::after(options_.patience, "the end of a step"));
}

// Each element of the model's gradient is counted on one device. What comes of it stays on the device.
CommOutcome<void> Engine::pass_gate() {
  for (int block = 0; block < parameters_.num_blocks(); ++block)
    for (const StateRun& run : parameters_.counted(block))
      kernels_->add_square_sum(parameters_.block(block).gradients.narrow(0, run.shard, run.length),
                               square_sum_);
  if (CommOutcome<void> done = sum_over_devices(); !done) return done;
  kernels_->pass_gate({update_.beta1, update_.beta2, update_.clip}, numbers_);
  return {};
}

void Engine::update_block(int block) {
  BlockState& state = parameters_.block(block);
  if (!state.weights.defined()) return;
  AdamOptions adam{.beta1 = update_.beta1, .beta2 = update_.beta2, .epsilon = update_.epsilon};
  const bool has_whole_weights = !parameters_.shape(block).is_sharded(StateKind::weights);
  for (const StateRun& run : parameters_.updates(block)) {
    const auto own = [&](const at::Tensor& flat) { return flat.narrow(0, run.shard, run.length); };
    adam.weight_decay = run.has_weight_decay ? update_.weight_decay : 0;
    at::Tensor weights = state.weights.narrow(0, has_whole_weights ? run.whole : run.shard, run.length),
               masters = state.masters.is_same(state.weights) ? weights : own(state.masters),
               first = own(state.first), second = own(state.second);
    kernels_->adamw(adam, numbers_, own(state.gradients), masters, first, second, weights);
  }
}

CommOutcome<void> Engine::forward_only(const Batch& batch, const Run& how) {
  const at::AutoDispatchBelowAutograd no_autograd;
  load(batch);
  begin_numbers();
  return run(how);
}

CommOutcome<Evaluation> Engine::evaluate(const Batch& batch) {
  const at::AutoDispatchBelowAutograd no_autograd;
  if (const CommOutcome<void> done = forward_only(batch, {.is_forward_only = true}); !done)
    return tl::unexpected(done.error());
  if (const CommOutcome<void> done = sum_over_devices(); !done) return tl::unexpected(done.error());
  if (const CommOutcome<void> done = settle(); !done) return tl::unexpected(done.error());
  host_numbers_.copy_(numbers_);
  auto* numbers = host_numbers_.data_ptr<double>();
  return Evaluation{number(numbers, StepNumber::loss_sum),
                    std::llround(number(numbers, StepNumber::num_counted))};
}

at::Tensor Engine::logits(const Batch& batch, KeyValueCache* cache) {
  ensure(!model_.is_custom(), "logits of a custom model: its modules give them");
  ensure(batch.microbatches.size() == 1, "logits of {} micro-batches", batch.microbatches.size());
  ensure(options_.comm == nullptr, "logits on several devices");
  const auto rows = std::ssize(batch.microbatches[0].ids);
  at::Tensor result =
      at::empty({rows, model_.vocab}, at::TensorOptions(types_.element).device(options_.device));
  ensure(forward_only(batch, {.is_forward_only = true, .all_logits = &result, .cache = cache}).has_value(),
         "one device failed to talk to itself");
  if (cache != nullptr) cache->advance(rows);
  return result;
}

Bytes Engine::arena_bytes() const { return Bytes(static_cast<std::int64_t>(arena_.nbytes())); }
Bytes Engine::bytes() const { return arena_bytes() + outside_ + Bytes(products_->bytes()); }

}  // namespace optimus
