// Constructs an engine: its blocks, its memory, and the operands of each instruction. engine.cpp runs the
// engine.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/make_gemm.h"
#include "model/rope.h"
#include "plan/validate.h"
#include "schedule/order.h"
#include "schedule/sizes.h"

namespace optimus {
namespace {

// Returns the number of positions of a sequence that a device has under a split.
std::int64_t own_length(const Side& side, int index, std::int64_t sequence_length) {
  std::int64_t sum = 0;
  for (const Span& span : share_of(side, index, 1, sequence_length, false).positions) sum += span.size();
  return sum;
}

Plan runnable(const Plan& plan, const ModelSpec& model, const EngineOptions& options) {
  ensure_engine_supports(plan, model);
  ensure(num_devices(plan) == 1 || options.comm != nullptr, "a plan for {} devices needs EngineOptions::comm",
         num_devices(plan));
  return plan;
}

// Returns cosine and sine of the rotation angles, each [positions, head_dim / 2]; undefined without RoPE.
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

ActivationBuffer activation_layout_of(const DeviceSizes& sizes, const Buffer& buffer, int sequences) {
  switch (buffer.kind) {
    case BufferKind::saved_activations:
      return sizes.saved(buffer.block, sequences);
    case BufferKind::transient_activations:
      return sizes.transient(buffer.block, sequences);
    case BufferKind::saved_gradients:
      return sizes.gradients(buffer.block, sequences);
    case BufferKind::transient_gradients:
      return sizes.transient_gradients(buffer.block, sequences);
    case BufferKind::logits:
      return sizes.logits(buffer.block, sequences);
    case BufferKind::weights:
    case BufferKind::gathered_weights:
    case BufferKind::stashed_weights:
    case BufferKind::gradients:
    case BufferKind::optimizer_state:
    case BufferKind::copy_state:
    case BufferKind::whole_gradients:
    case BufferKind::copy_gradients:
    case BufferKind::exchange:
    case BufferKind::outgoing:
    case BufferKind::message:
    case BufferKind::joined:
    case BufferKind::graph:
    case BufferKind::graph_work:
      return {};
  }
  return {};
}

bool is_flat(BufferKind kind) {
  return kind == BufferKind::gathered_weights || kind == BufferKind::whole_gradients ||
         kind == BufferKind::copy_gradients || kind == BufferKind::exchange || kind == BufferKind::outgoing ||
         kind == BufferKind::message || kind == BufferKind::joined;
}

}  // namespace

Group world_of(const Plan& plan, int num_ranks) {
  Group world;
  if (num_devices(plan) == num_ranks) return world;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      world.members.insert(world.members.end(), stage.devices.begin(), stage.devices.end());
  std::sort(world.members.begin(), world.members.end());
  return world;
}

std::vector<Group> groups_of(const Program& program, const Plan& plan, int num_ranks) {
  std::vector<Group> result = program.groups;
  for (Group& group : result)
    if (group.role == Role::world) group = world_of(plan, num_ranks);
  return result;
}

std::vector<Group> Engine::groups() const {
  return groups_of(program_, plan_, options_.comm == nullptr ? 1 : options_.comm->size());
}

namespace {

using UnsupportedReason = std::optional<std::string>;

// If several tensor-parallel ranks have the same key/value head, its gradient is a sum to which each rank
// contributes one term. Rounding these terms to fp8 separately differs from rounding the sum.
UnsupportedReason problem_with_shared_kv_heads(const Plan& plan, const ModelSpec& model, const Stage& stage) {
  for (const int block : fp8_blocks(plan)) {
    if (block < stage.chunks.front().first_block() || block >= stage.chunks.back().end_block()) continue;
    for (const Chunk& chunk : stage.chunks) {
      if (block < chunk.first_block() || block >= chunk.end_block()) continue;
      const LayerStrategy& strategy = strategy_of(stage, block);
      for (int part = 1; part < strategy.tp; ++part)
        if (tensor_part(model, strategy, part).kv_heads.begin <
            tensor_part(model, strategy, part - 1).kv_heads.end)
          return fmt::format(
              "block {}: with tp {}, devices share some of the {} key/value heads, which fp8 does not "
              "support; use a tp that divides the number of key/value heads",
              block, strategy.tp, model.kv_heads);
    }
  }
  return std::nullopt;
}

UnsupportedReason unsupported_reason(const Plan& plan, const ModelSpec& model, const Stage& stage) {
  if (UnsupportedReason reason = problem_with_shared_kv_heads(plan, model, stage)) return reason;
  const bool has_both_ends =
      stage.chunks.front().first_block() == 0 && stage.chunks.back().end_block() == plan.num_blocks;
  if (model.is_tied && has_both_ends) {
    const LayerStrategy &first = strategy_of(stage, 0), &last = strategy_of(stage, plan.num_blocks - 1);
    if (first.tp != last.tp || first.zero != last.zero || first.shard_group != last.shard_group)
      return fmt::format(
          "blocks 0 and {} share the embedding but have different tp, zero or shard groups; give them the "
          "same strategy",
          plan.num_blocks - 1);
  }
  for (const Chunk& chunk : stage.chunks)
    for (const BlockRun& run : chunk.runs) {
      const LayerStrategy& s = run.strategy;
      // Autograd saves references to weights, which must still be valid in the backward pass.
      const bool saves_weights_in_autograd = model.is_custom() && s.zero == 3 && plan.num_blocks > 1;
      if (saves_weights_in_autograd && s.recompute != RecomputeMode::full)
        return "zero 3 with a module model requires --recompute full; use --recompute full or zero 2";
      if (s.offload) return "offload: optimizer state in host memory is not supported yet";
    }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> unsupported_reason(const Plan& plan, const ModelSpec& model) {
  if (const UnsupportedReason problem = find_problem(plan, model))
    return fmt::format("the plan: {}", *problem);
  if (model.is_mixture())
    return fmt::format(
        "{} is a mixture-of-experts model, which can be planned and simulated but not trained yet",
        model.name);
  if (is_asynchronous(plan.schedule) && model.is_custom())
    return fmt::format(
        "schedule {} updates weights that autograd has saved for the backward pass; use a synchronous "
        "schedule",
        text(plan.schedule));
  if (bytes_of(plan.accumulators) < 4)
    return fmt::format(
        "accumulators {} are not supported, because gradients are accumulated in fp32; use fp32",
        text(plan.accumulators));
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (UnsupportedReason reason = unsupported_reason(plan, model, stage)) return reason;
  return std::nullopt;
}

void ensure_engine_supports(const Plan& plan, const ModelSpec& model) {
  if (const UnsupportedReason reason = unsupported_reason(plan, model)) throw UserError("{}", *reason);
}

Engine::Engine(const Plan& plan, const ModelSpec& model, Parameters& parameters, const EngineOptions& options)
    : plan_(runnable(plan, model, options)),
      model_(model),
      parameters_(parameters),
      options_(options),
      types_(types_of(plan.precision)),
      program_(compile(plan_, model_,
                       options.comm == nullptr ? plan_.pipelines[0].stages[0].devices[0] : options.rank)),
      time_limits_(options.step_heartbeat, program_.instructions.size(),
                   options.step_heartbeat != nullptr && options.predicted_times
                       ? options.predicted_times(plan_, program_)
                       : std::vector<double>()),
      world_(world_of(plan_, options.comm == nullptr ? 1 : options.comm->size())),
      pipeline_(plan_.pipelines[static_cast<std::size_t>(program_.location.pipeline)]),
      stage_(pipeline_.stages[static_cast<std::size_t>(program_.location.stage)]),
      kernels_(make_kernels(options.device)),
      attention_(make_attention(options.device, types_.element)),
      ring_attention_(make_ring_attention(options.device)),
      gemm_(make_gemm(options.device, types_.element, options.gemm_algorithm_file)),
      services_{model_, types_, *kernels_, *attention_, *ring_attention_, *gemm_, {}, {}},
      crossings_(plan_, model_, program_, flat_buffers_, types_.element, options.comm),
      state_exchange_(plan_, model_, program_, parameters, options.comm),
      weight_versions_(plan_, program_, parameters),
      microbatch_updates_(plan_, program_.location, options.device),
      recording_(options.device) {
  if (has_fp8(plan_)) fp8_ = std::make_unique<Fp8Scales>(plan_, options.device);
  services_.fp8 = fp8_.get();
  if (fp8_ != nullptr) state_exchange_.gather_in_fp8(*fp8_, *kernels_);
  std::tie(services_.cosine, services_.sine) =
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
    for (int block = chunk.first_block(); block < chunk.end_block(); ++block) {
      const LayerStrategy& strategy = strategy_of(stage_, block);
      const TensorPart part = tensor_part(model_, strategy, program_.location.index);
      std::unique_ptr<Block>& new_block = blocks_[static_cast<std::size_t>(block)];
      switch (block_kind(model_, block)) {
        case BlockKind::embedding:
          new_block = make_embedding_block(services_, part);
          break;
        case BlockKind::layer:
          new_block = make_layer_block(services_, block, strategy, part);
          break;
        case BlockKind::head:
          new_block = make_head_block(services_, part);
          break;
        case BlockKind::custom:
          ensure(options_.make_custom_block != nullptr,
                 "a custom model needs EngineOptions::make_custom_block");
          new_block = options_.make_custom_block(block, strategy.recompute);
          break;
      }
    }
}

void Engine::make_memory() {
  const Arena planned = plan_arena(program_);
  autograd_bytes_ = planned.autograd_peak;
  arena_ = at::empty({planned.bytes.value}, at::TensorOptions(at::kByte).device(options_.device));
  step_scalars_ = at::zeros({kNumStepScalars}, at::TensorOptions(at::kDouble).device(options_.device));
  host_step_scalars_ =
      at::zeros({kNumStepScalars}, at::TensorOptions(at::kDouble).pinned_memory(options_.device.is_cuda()));
  loss_sum_ = step_scalars_.narrow(0, static_cast<int>(StepScalar::loss_sum), 1);
  square_sum_ = step_scalars_.narrow(0, static_cast<int>(StepScalar::square_sum), 1);
  const DeviceSizes sizes(plan_, model_, program_.location);
  const std::vector<int>& sequences = pipeline_.microbatches;
  activation_buffers_.resize(program_.buffers.size()), flat_buffers_.resize(program_.buffers.size());
  outgoing_.resize(program_.buffers.size());
  for (std::size_t b = 0; b < program_.buffers.size(); ++b) {
    const Buffer& buffer = program_.buffers[b];
    if (planned.offsets[b] < 0) continue;
    const at::Tensor memory = arena_.narrow(0, planned.offsets[b], buffer.bytes.value);
    if (is_flat(buffer.kind)) flat_buffers_[b] = memory;
    if (buffer.kind == BufferKind::outgoing)
      outgoing_[b] = crossings_.outgoing(static_cast<int>(b));
    else if (!is_flat(buffer.kind) && buffer.microbatch >= 0)
      activation_buffers_[b] = ActivationTensors(
          activation_layout_of(sizes, buffer, sequences[static_cast<std::size_t>(buffer.microbatch)]), memory,
          types_);
  }
  microbatches_.resize(splits_of(stage_).size() * sequences.size());
}

// Returns a flat tensor of `count` elements inside a byte buffer, starting after `offset` elements.
at::Tensor Engine::flat_view(int buffer, std::int64_t offset, std::int64_t count, at::ScalarType type) const {
  const auto width = static_cast<std::int64_t>(at::elementSize(type));
  return flat_buffers_[static_cast<std::size_t>(buffer)].narrow(0, offset * width, count * width).view(type);
}

// Returns the whole weights or gradients of a block. They are in a buffer of the program, or in Parameters if
// `buffer` is -1. Undefined if Parameters has only a shard.
at::Tensor Engine::whole_buffer(int block, int buffer, StateKind kind) const {
  const BlockShape& shape = parameters_.shape(block);
  const bool is_weights = kind == StateKind::weights;
  if (buffer >= 0)
    return flat_view(buffer, 0, shape.whole_elements, is_weights ? types_.element : types_.wide);
  if (shape.is_sharded(kind)) return {};
  return is_weights ? parameters_.block(block).weights : parameters_.block(block).gradients;
}

at::Tensor Engine::whole_weights(const ViewKey& key) const {
  if (key.version >= 0) return weight_versions_.weights(key.block, key.version);
  return whole_buffer(key.block, key.weights, StateKind::weights);
}

// Returns the views of a block's tensors, which are created once for each set of buffers.
const BlockViews* Engine::views(const ViewKey& key) {
  const BlockViews*& cached_views = view_cache_[key];
  if (cached_views != nullptr) return cached_views;
  BlockViews block_views;
  if (!parameters_.shape(key.block).tensors.empty())
    block_views = parameters_.views(key.block, whole_weights(key),
                                    whole_buffer(key.block, key.gradients, StateKind::gradients));
  // In a stage without the first block, the head's own tensors include a copy of the tied embedding.
  const bool uses_first_block_embedding = model_.is_tied && stage_.chunks.front().first_block() == 0;
  if (block_kind(model_, key.block) == BlockKind::head && uses_first_block_embedding) {
    constexpr const char* kWords = "embedding.words.weight";
    WeightView word_embedding = parameters_.views(0, whole_buffer(0, -1, StateKind::weights),
                                                  whole_buffer(0, key.tied, StateKind::gradients))[kWords];
    if (key.weights >= 0) {
      const std::int64_t rows =
          tensor_part(model_, strategy_of(stage_, key.block), program_.location.index).vocab.size();
      word_embedding.weight =
          flat_view(key.weights, state_exchange_.tied_offset(), rows * model_.hidden, types_.element)
              .view({rows, model_.hidden});
    }
    block_views.add(kWords, word_embedding);
  }
  views_.push_back(std::make_unique<BlockViews>(std::move(block_views)));
  return cached_views = views_.back().get();
}

// Determines the operands of each instruction.
void Engine::make_passes() {
  const std::size_t num_microbatches = pipeline_.microbatches.size();
  const StagePosition position{program_.location.stage, static_cast<int>(pipeline_.stages.size()),
                               static_cast<int>(num_microbatches), static_cast<int>(stage_.chunks.size())};
  const std::vector<Side> splits = splits_of(stage_);
  const std::vector<Slot> slots = order_of(plan_.schedule, position);
  std::vector<bool> is_cleared(program_.buffers.size());
  zeroed_buffers_.resize(program_.instructions.size());
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    Pass& pass = passes_.emplace_back();
    is_forward_.push_back(instruction.slot >= 0 &&
                          slots[static_cast<std::size_t>(instruction.slot)].work == Work::forward);
    if (instruction.microbatch >= 0 && instruction.block >= 0) {
      const auto split = static_cast<std::size_t>(split_of(stage_, instruction.block));
      pass.microbatch =
          &microbatches_[split * num_microbatches + static_cast<std::size_t>(instruction.microbatch)];
      pass.own_length = own_length(splits[split], program_.location.index, plan_.sequence_length);
    }
    pass.sequence_length = plan_.sequence_length, pass.ring_step = instruction.ring_step;
    pass.dropout = RandomKey(static_cast<std::uint64_t>(options_.seed)).derive("dropout");
    pass.is_recompute = instruction.op == Op::recompute ||
                        (instruction.lane == Lane::tensor && instruction.serves == Op::recompute);
    pass.loss = &loss_sum_;
    ViewKey key = add_buffers(instruction, pass);
    for (const int buffer : {key.gradients, key.tied})
      if (buffer >= 0 && !is_cleared[static_cast<std::size_t>(buffer)]) {
        zeroed_buffers_[i].push_back(buffer);
        is_cleared[static_cast<std::size_t>(buffer)] = true;
      }
    const bool belongs_to_block = instruction.lane == Lane::compute || instruction.lane == Lane::tensor;
    if (!belongs_to_block || instruction.op == Op::optimizer) continue;
    if (!is_forward_.back()) key.version = weight_versions_.version_of(instruction.microbatch);
    pass.weights = views(key);
  }
}

namespace {

bool belongs_to_backward(const Instruction& instruction) {
  const Op op = instruction.lane == Lane::tensor ? instruction.serves : instruction.op;
  return op == Op::backward_input || op == Op::backward_weight;
}

}  // namespace

// Adds the activation buffers of an instruction to the pass. Returns the key of the instruction's buffers for
// gathered weights and unreduced gradients.
Engine::ViewKey Engine::add_buffers(const Instruction& instruction, Pass& pass) const {
  ViewKey key{.block = instruction.block};
  for (const Use& use : program_.uses(instruction)) {
    const Buffer& buffer = program_.buffers[static_cast<std::size_t>(use.buffer)];
    const ActivationTensors& activation_buffer = activation_buffers_[static_cast<std::size_t>(use.buffer)];
    const bool is_own_block = buffer.block == instruction.block;
    if (buffer.kind == BufferKind::gathered_weights)
      key.weights = use.buffer;
    else if (buffer.kind == BufferKind::whole_gradients)
      (is_own_block ? key.gradients : key.tied) = use.buffer;
    else if (buffer.kind == BufferKind::outgoing) {
      if (use.is_write)
        (belongs_to_backward(instruction) ? pass.input_gradient : pass.next_input) =
            &outgoing_[static_cast<std::size_t>(use.buffer)];
    } else if (is_flat(buffer.kind))
      continue;
    else if (is_own_block)
      pass.activation_buffers.push_back(&activation_buffer);
    else if (buffer.block > instruction.block)
      pass.next_input = activation_buffer.find(input_name(model_, buffer.block));
    else
      pass.input_gradient = activation_buffer.find("output.gradient");
  }
  return key;
}

// The first weight-gradient instruction of a block in a step overwrites gradients of the previous step, which
// therefore need not be zeroed. All other gradients are zeroed. Gradients that are reduced to shards are
// always zeroed.
void Engine::mark_first_passes() {
  std::set<std::pair<int, Part>> marked_blocks;
  std::vector<at::Tensor> written;
  // Each update zeroes the gradients that it used.
  if (is_asynchronous(plan_.schedule)) return clear_other_ranges(written);
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    if (instruction.lane != Lane::compute || instruction.op == Op::optimizer) continue;
    const LayerStrategy& strategy = strategy_of(stage_, instruction.block);
    const bool is_head = block_kind(model_, instruction.block) == BlockKind::head;
    const Op overwriting_op = !is_head           ? Op::backward_weight
                              : strategy.tp == 1 ? Op::forward
                                                 : Op::backward_input;
    if (instruction.op != overwriting_op ||
        parameters_.shape(instruction.block).is_sharded(StateKind::gradients))
      continue;
    // A device may have nothing to compute in a small micro-batch.
    const Side side{static_cast<int>(stage_.devices.size()), strategy};
    const int sequences = pipeline_.microbatches[static_cast<std::size_t>(instruction.microbatch)];
    if (share_of(side, program_.location.index, sequences, plan_.sequence_length, false).num_tokens() == 0)
      continue;
    if (!marked_blocks.emplace(instruction.block, instruction.part).second) continue;
    passes_[i].is_first = true;
    for (const std::string& name :
         blocks_[static_cast<std::size_t>(instruction.block)]->overwritten_gradients())
      if (const at::Tensor& sums = (*passes_[i].weights)[name].gradient; sums.defined())
        written.push_back(sums);
  }
  clear_other_ranges(written);
}

void Engine::clear_other_ranges(const std::vector<at::Tensor>& written) {
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
      if (from < to) zeroed_sums_.push_back(flat.narrow(0, (from - begin) / element, (to - from) / element));
    };
    char* next = begin;
    for (const auto& [from, to] : ranges)
      if (from >= begin && from < end) clear(next, from), next = std::max(next, to);
    clear(next, end);
  }
}

}  // namespace optimus
