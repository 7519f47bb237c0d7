// Adds the instructions for the forward and backward pass of a block. A layer consists of two halves,
// attention and mlp. With tensor parallelism, each half ends with an all-reduce over the group. With sequence
// parallelism, it starts with an all-gather and ends with a reduce-scatter:
//
//   forward    [all_gather] attention [all_reduce | reduce_scatter]
//              [all_gather] mlp [all_reduce | reduce_scatter]
//   backward   [all_gather] mlp input gradient [all_reduce | reduce_scatter], meanwhile its weight gradient;
//              attention likewise
//
// In the second half of an MoE layer, each device routes its own positions and exchanges tokens with the
// devices of their experts:
//
//   forward    router [dispatch] experts [combine]
//   backward   [dispatch] experts' input gradient [combine], meanwhile their weight gradients; router
#include <utility>

#include "schedule/step_compiler.h"

namespace optimus {

int StepCompiler::tensor_group(int block) {
  const LayerStrategy& s = strategy(block);
  // The group is cached, because the blocks of one run are compiled consecutively.
  if (&s == tensor_group_of_) return last_tensor_group_;
  const int tp = s.tp, first = location_.index / tp * tp;
  tensor_group_of_ = &s;
  return last_tensor_group_ = builder_.intern_group(
             Role::tensor, {stage_.devices.begin() + first, stage_.devices.begin() + first + tp});
}

int StepCompiler::tensor_subgroup(int block, const std::vector<int>& parts) {
  const int tp = strategy(block).tp, first = location_.index / tp * tp;
  std::vector<int> members;
  for (const int part : parts) members.push_back(stage_.devices[static_cast<std::size_t>(first + part)]);
  return builder_.intern_group(Role::tensor, std::move(members));
}

int StepCompiler::context_group(int block) {
  const LayerStrategy& s = strategy(block);
  const int first = location_.index / (s.tp * s.cp) * (s.tp * s.cp) + location_.index % s.tp;
  std::vector<int> members;
  for (int i = 0; i < s.cp; ++i)
    members.push_back(stage_.devices[static_cast<std::size_t>(first + i * s.tp)]);
  return builder_.intern_group(Role::context, std::move(members));
}

int StepCompiler::expert_group(int block) {
  const int ep = strategy(block).ep, first = location_.index / ep * ep;
  return builder_.intern_group(Role::expert,
                               {stage_.devices.begin() + first, stage_.devices.begin() + first + ep});
}

Bytes StepCompiler::activation_buffer_bytes(ActivationBufferKind activation_buffer, int block,
                                            int microbatch) {
  const int n = sequences(microbatch);
  const auto [at, is_new] =
      activation_buffer_sizes_.try_emplace({activation_buffer, pattern(model_, block), &strategy(block), n});
  if (!is_new) return at->second;
  switch (activation_buffer) {
    case ActivationBufferKind::saved:
      return at->second = sizes_.saved(block, n).bytes;
    case ActivationBufferKind::transient:
      return at->second = sizes_.transient(block, n).bytes;
    case ActivationBufferKind::gradients:
      return at->second = sizes_.gradients(block, n).bytes;
    case ActivationBufferKind::transient_gradients:
      return at->second = sizes_.transient_gradients(block, n).bytes;
    case ActivationBufferKind::logits:
      return at->second = sizes_.logits(block, n).bytes;
    case ActivationBufferKind::graph:
      return at->second = sizes_.graph(block, n);
    case ActivationBufferKind::graph_work:
      return at->second = sizes_.graph_work(block, n);
  }
  return at->second;
}

void StepCompiler::use_activation_buffer(std::map<BlockMicrobatch, int>& activation_buffers,
                                         ActivationBufferKind activation_buffer, int block, int microbatch,
                                         bool is_write) {
  static constexpr BufferKind kinds[] = {BufferKind::saved_activations,
                                         BufferKind::transient_activations,
                                         BufferKind::saved_gradients,
                                         BufferKind::transient_gradients,
                                         BufferKind::logits,
                                         BufferKind::graph,
                                         BufferKind::graph_work};
  const Bytes bytes = activation_buffer_bytes(activation_buffer, block, microbatch);
  if (bytes.value == 0) return;
  const auto [at, is_new] = activation_buffers.try_emplace({block, microbatch}, -1);
  if (is_new)
    at->second =
        builder_.add_buffer(kinds[static_cast<std::size_t>(activation_buffer)], block, microbatch, bytes);
  builder_.use(at->second, is_write);
}

// A block writes its output directly into the saved activations of the next block, and its input gradient
// directly into the gradients of the preceding block, if that block is on this device and split in the same
// way.
void StepCompiler::use_activation_buffers(Instruction instruction) {
  const bool is_collective = instruction.lane == Lane::tensor;
  if (is_collective) instruction.op = instruction.serves;
  const int block = instruction.block, microbatch = instruction.microbatch;
  const auto is_neighbour = [&](int other) {
    return chunk_of(other) >= 0 && is_same_split(strategy(block), strategy(other));
  };
  const bool is_first_part = instruction.part == Part::whole || instruction.part == Part::attention ||
                             instruction.part == Part::attention_input,
             is_last_part = instruction.part == Part::whole || instruction.part == Part::mlp ||
                            instruction.part == Part::experts;
  const bool is_forward = instruction.op == Op::forward, is_head = kind(block) == BlockKind::head;
  use_activation_buffer(is_forward ? saved_by_forward(block) : saved_, ActivationBufferKind::saved, block,
                        microbatch, is_forward);
  if (is_forward) {
    use_activation_buffer(transient_, ActivationBufferKind::transient, block, microbatch, true);
    if (is_last_part && block + 1 < plan_.num_blocks) {
      if (is_neighbour(block + 1))
        use_activation_buffer(saved_by_forward(block + 1), ActivationBufferKind::saved, block + 1, microbatch,
                              true);
      else
        builder_.use(outgoing(block, microbatch, false), true);
    }
    if (is_head && !is_collective) {
      use_activation_buffer(logits_, ActivationBufferKind::logits, block, microbatch, true);
      // the loss is computed together with its gradients
      if (strategy(block).tp == 1) use_whole_gradients(block, microbatch);
    }
    return;
  }
  use_activation_buffer(recomputed_, ActivationBufferKind::transient, block, microbatch,
                        instruction.op != Op::backward_weight || is_collective);
  if (instruction.op == Op::recompute) {
    if (is_last_part && block + 1 < recompute_group(block).end)
      use_activation_buffer(saved_, ActivationBufferKind::saved, block + 1, microbatch, true);
    return;
  }
  use_activation_buffer(gradients_, ActivationBufferKind::gradients, block, microbatch,
                        instruction.op == Op::backward_input || is_collective);
  if (instruction.op == Op::backward_input) {
    use_activation_buffer(transient_gradients_, ActivationBufferKind::transient_gradients, block, microbatch,
                          true);
    if (is_first_part && block > 0) {
      if (is_neighbour(block - 1))
        use_activation_buffer(gradients_, ActivationBufferKind::gradients, block - 1, microbatch, true);
      else
        builder_.use(outgoing(block, microbatch, true), true);
    }
    if (is_head && !is_collective && strategy(block).tp > 1)
      use_activation_buffer(backward_logits_, ActivationBufferKind::logits, block, microbatch, true);
  }
  use_whole_gradients(block, microbatch);
}

bool StepCompiler::reduces_every_microbatch(int block) const {
  const LayerStrategy& s = strategy(block);
  return s.zero >= 2 &&
         (shard_count(stage_, s) > 1 || (has_experts(block) && expert_shard_count(stage_, s) > 1));
}

// The buffer for the whole gradient of one micro-batch, before it is reduced to shards. It is live from the
// first part of the backward pass that adds to it. For a tied embedding, the head's contribution stays in
// this buffer until the embedding adds its contribution.
void StepCompiler::use_whole_gradients(int block, int microbatch) {
  if (!reduces_every_microbatch(block)) return;
  const auto [at, is_new] = whole_gradients_.try_emplace({block, microbatch}, -1);
  if (is_new)
    at->second = builder_.add_buffer(BufferKind::whole_gradients, block, microbatch,
                                     sizes_.whole_buffer(block, StateKind::gradients));
  builder_.use(at->second, true);
  const bool has_tied_embedding =
      model_.is_tied && kind(block) == BlockKind::head && stage_.chunks.front().first_block() == 0;
  if (has_tied_embedding && is_same_split(strategy(0), strategy(block))) use_whole_gradients(0, microbatch);
}

Dependencies StepCompiler::last_computes() const {
  return last_tensor_ < 0 ? Dependencies{last_compute_} : Dependencies{last_compute_, last_tensor_};
}

bool StepCompiler::is_recomputed(int block) const {
  const bool can_be =
      kind(block) == BlockKind::layer || (kind(block) == BlockKind::custom && block + 1 < plan_.num_blocks);
  return can_be && strategy(block).recompute == RecomputeMode::full;
}

// An autograd graph is live from the forward pass that builds it to the backward pass. If the forward pass is
// recomputed, the graph of the first forward pass is discarded. Weight gradients are counted in graph_work
// until they have been added to the accumulators.
void StepCompiler::use_graph(const Instruction& instruction) {
  if (kind(instruction.block) != BlockKind::custom) return;
  const bool is_forward = instruction.op == Op::forward;
  use_activation_buffer(is_forward && is_recomputed(instruction.block) ? forward_graph_ : graph_,
                        ActivationBufferKind::graph, instruction.block, instruction.microbatch,
                        is_forward || instruction.op == Op::recompute);
  use_activation_buffer(is_forward ? graph_work_ : backward_graph_work_, ActivationBufferKind::graph_work,
                        instruction.block, instruction.microbatch, true);
}

int StepCompiler::compute(Op op, Part part, int microbatch, int block, const Dependencies& waits,
                          int ring_step) {
  const int index = builder_.add({.op = op,
                                  .lane = Lane::compute,
                                  .part = part,
                                  .is_backward = op == Op::backward_input || op == Op::backward_weight,
                                  .microbatch = microbatch,
                                  .chunk = chunk_of(block),
                                  .block = block,
                                  .ring_step = ring_step},
                                 waits);
  last_compute_ = index;
  const Instruction instruction = builder_.program().instructions.back();
  use_received(instruction);
  if (!has_buffers_) return index;
  use_activation_buffers(instruction);
  use_graph(instruction);
  // Weight gradients do not need weights, with two exceptions: an embedding with a norm, and a custom block,
  // for which autograd computes all gradients together.
  const bool has_weight_path = kind(block) == BlockKind::embedding || kind(block) == BlockKind::custom;
  const bool needs_weights = op != Op::backward_weight || (has_weight_path && has_backward_weights(block));
  if (const auto gathered = gathered_weights_.find(block);
      gathered != gathered_weights_.end() && needs_weights)
    builder_.use(gathered->second, false);
  return index;
}

int StepCompiler::tensor_collective(Op op, const ServedCompute& served, Bytes bytes,
                                    const Dependencies& waits) {
  Instruction instruction{.op = op,
                          .lane = Lane::tensor,
                          .part = served.part,
                          .is_backward = served.is_backward,
                          .serves = served.op,
                          .microbatch = served.microbatch};
  instruction.chunk = chunk_of(served.block), instruction.block = served.block;
  instruction.group = tensor_group(served.block);
  instruction.bytes = bytes.value;
  last_tensor_ = builder_.add(instruction, waits);
  if (!has_buffers_ || served.op == Op::receive) return last_tensor_;
  use_received(instruction);
  use_activation_buffers(instruction);
  const bool reads_weights = served.op != Op::backward_weight || has_backward_weights(served.block);
  if (const auto gathered = gathered_weights_.find(served.block);
      gathered != gathered_weights_.end() && reads_weights)
    builder_.use(gathered->second, false);
  return last_tensor_;
}

// Sends keys and values one step around the ring, in the backward pass together with their gradients. The
// last exchange of the backward pass only returns the gradients to their owner.
int StepCompiler::ring(Op op, int microbatch, int block, int ring_step, const Dependencies& waits) {
  const bool is_backward = op == Op::backward_input, is_last = ring_step + 1 == strategy(block).cp;
  Instruction instruction{.op = Op::ring_exchange,
                          .lane = Lane::tensor,
                          .part = Part::attention_ring_step,
                          .is_backward = is_backward,
                          .serves = op,
                          .microbatch = microbatch};
  instruction.chunk = chunk_of(block), instruction.block = block, instruction.ring_step = ring_step;
  instruction.group = context_group(block);
  const int n = sequences(microbatch);
  const Bytes keys = is_backward && is_last ? Bytes(0) : sizes_.ring(block, n),
              gradients = is_backward ? sizes_.ring_gradients(block, n) : Bytes(0);
  instruction.bytes = (keys + gradients).value;
  last_tensor_ = builder_.add(instruction, waits);
  if (has_buffers_) use_activation_buffers(instruction);
  return last_tensor_;
}

Dependencies StepCompiler::gather_sequence(const ServedCompute& served, Dependencies dependencies) {
  if (!strategy(served.block).sequence_parallel) return dependencies;
  const Bytes full_bytes = sizes_.whole_activation(served.block, sequences(served.microbatch));
  // The earlier instructions stay in the dependencies, because they may be on other lanes than the gather.
  dependencies.push_back(tensor_collective(Op::all_gather, served, full_bytes, dependencies));
  return dependencies;
}

Dependencies StepCompiler::reduce_partial(const ServedCompute& served, Dependencies dependencies) {
  const LayerStrategy& s = strategy(served.block);
  if (s.tp == 1) return dependencies;
  const Bytes full_bytes = sizes_.whole_activation(served.block, sequences(served.microbatch));
  return {tensor_collective(s.sequence_parallel ? Op::reduce_scatter : Op::all_reduce, served, full_bytes,
                            dependencies)};
}

Dependencies StepCompiler::forward_attention(int microbatch, int block, const Dependencies& dependencies,
                                             Op op) {
  const int cp = strategy(block).cp;
  if (cp == 1) return {compute(op, Part::attention, microbatch, block, dependencies)};
  Dependencies keys = {compute(op, Part::attention_input, microbatch, block, dependencies)};
  int previous_key = keys.front();
  for (int ring_step = 0; ring_step < cp; ++ring_step) {
    // The next keys and values are sent while the current ones are processed, but not earlier, so two buffers
    // are enough.
    const Dependencies current_keys = keys;
    if (ring_step + 1 < cp)
      keys = {ring(op, microbatch, block, ring_step, {current_keys.front(), previous_key})};
    previous_key = compute(op, Part::attention_ring_step, microbatch, block, current_keys, ring_step);
  }
  return {compute(op, Part::attention_output, microbatch, block, {})};
}

Dependencies StepCompiler::exchange_tokens(Op op, int microbatch, int block, bool is_backward,
                                           Dependencies dependencies) {
  if (strategy(block).ep == 1) return dependencies;
  Instruction instruction{
      .op = op, .lane = Lane::tensor, .is_backward = is_backward, .microbatch = microbatch};
  instruction.chunk = chunk_of(block), instruction.block = block;
  instruction.group = expert_group(block);
  instruction.bytes = sizes_.dispatched_tokens(block, sequences(microbatch)).value;
  // The earlier instructions stay in the dependencies, because they may be on other lanes.
  dependencies.push_back(builder_.add(instruction, dependencies));
  return dependencies;
}

Dependencies StepCompiler::forward_experts(int microbatch, int block, Dependencies dependencies, Op op) {
  dependencies = {compute(op, Part::router, microbatch, block, dependencies)};
  dependencies = exchange_tokens(Op::dispatch, microbatch, block, false, std::move(dependencies));
  dependencies = {compute(op, Part::experts, microbatch, block, dependencies)};
  return exchange_tokens(Op::combine, microbatch, block, false, std::move(dependencies));
}

Dependencies StepCompiler::backward_experts(int microbatch, int block, Dependencies dependencies,
                                            bool with_weights) {
  dependencies = exchange_tokens(Op::dispatch, microbatch, block, true, std::move(dependencies));
  dependencies = {compute(Op::backward_input, Part::experts, microbatch, block, dependencies)};
  dependencies = exchange_tokens(Op::combine, microbatch, block, true, std::move(dependencies));
  if (with_weights) backward_weight(Part::experts, microbatch, block, {});
  dependencies = {compute(Op::backward_input, Part::router, microbatch, block, dependencies)};
  if (with_weights) backward_weight(Part::router, microbatch, block, {});
  return dependencies;
}

Dependencies StepCompiler::forward_block(int microbatch, int block, Dependencies dependencies, Op op) {
  switch (kind(block)) {
    case BlockKind::embedding:
      dependencies = {compute(op, Part::whole, microbatch, block, dependencies)};
      dependencies = reduce_partial({op, Part::whole, microbatch, block}, std::move(dependencies));
      break;
    case BlockKind::layer: {
      const ServedCompute attention{op, Part::attention, microbatch, block},
          mlp{op, Part::mlp, microbatch, block};
      dependencies = gather_sequence(attention, std::move(dependencies));
      dependencies = reduce_partial(attention, forward_attention(microbatch, block, dependencies, op));
      if (has_experts(block)) {
        dependencies = forward_experts(microbatch, block, std::move(dependencies), op);
        break;
      }
      dependencies = gather_sequence(mlp, std::move(dependencies));
      dependencies = reduce_partial(mlp, {compute(op, Part::mlp, microbatch, block, dependencies)});
      break;
    }
    case BlockKind::custom:
      dependencies = {compute(op, Part::whole, microbatch, block, dependencies)};
      break;
    case BlockKind::head: {
      dependencies = gather_sequence({op, Part::whole, microbatch, block}, std::move(dependencies));
      dependencies = {compute(op, Part::whole, microbatch, block, dependencies)};
      if (strategy(block).tp > 1) {
        // For each token: the largest logit, the sum of exponentials, and the logit of the target, in fp32.
        const Side side{static_cast<int>(stage_.devices.size()), strategy(block)};
        const std::int64_t tokens =
            share_of(side, location_.index, sequences(microbatch), plan_.sequence_length, false).num_tokens();
        dependencies = {tensor_collective(Op::all_reduce, {op, Part::whole, microbatch, block},
                                          Bytes(tokens * 3 * 4), dependencies)};
      }
      backward_dependencies_[{block, microbatch}] =
          dependencies;  // the backward pass waits for the logit statistics
      break;
    }
  }
  recent_computes_.push_back(last_compute_);
  return dependencies;
}

Dependencies StepCompiler::backward_attention_input(int microbatch, int block,
                                                    const Dependencies& dependencies) {
  const int cp = strategy(block).cp;
  if (cp == 1) return {compute(Op::backward_input, Part::attention, microbatch, block, dependencies)};
  Dependencies keys = {compute(Op::backward_input, Part::attention_output, microbatch, block, dependencies)};
  for (int ring_step = 0; ring_step < cp; ++ring_step)
    // The gradients of keys and values are sent together with the keys and values. The last exchange returns
    // the gradients to their owner.
    keys = {
        ring(Op::backward_input, microbatch, block, ring_step,
             {compute(Op::backward_input, Part::attention_ring_step, microbatch, block, keys, ring_step)})};
  return {compute(Op::backward_input, Part::attention_input, microbatch, block, keys)};
}

Dependencies StepCompiler::recompute(int microbatch, int block, Dependencies dependencies) {
  const Span group = recompute_group(block);
  Dependencies recompute_waits = dependencies;
  for (int b = static_cast<int>(group.begin); b < group.end; ++b) {
    recompute_waits = gather_parameters(b, std::move(recompute_waits));
    recompute_waits = forward_block(microbatch, b, std::move(recompute_waits), Op::recompute);
  }
  dependencies.insert(dependencies.end(), recompute_waits.begin(), recompute_waits.end());
  return dependencies;
}

Dependencies StepCompiler::backward_block(int microbatch, int block, Dependencies dependencies,
                                          bool with_weights) {
  // A weight gradient is placed after the collective that sums the input gradient, so that the two overlap.
  // The gather of its operand is placed before that collective.
  switch (kind(block)) {
    case BlockKind::embedding:
      // An embedding has no input gradient. Its weight gradient waits for the received gradient.
      backward_dependencies_[{block, microbatch}] =
          gather_sequence({Op::backward_weight, Part::whole, microbatch, block, true}, dependencies);
      if (with_weights)
        backward_weight(Part::whole, microbatch, block, backward_dependencies_[{block, microbatch}]);
      break;
    case BlockKind::layer:
      dependencies = has_experts(block)
                         ? backward_experts(microbatch, block, std::move(dependencies), with_weights)
                         : backward_half(Part::mlp, microbatch, block, std::move(dependencies), with_weights);
      dependencies = backward_half(Part::attention, microbatch, block, std::move(dependencies), with_weights);
      break;
    case BlockKind::custom:
      // Weight gradients are not deferred, because autograd computes all gradients at once. Block 0 has no
      // input gradient.
      if (block > 0)
        dependencies = {compute(Op::backward_input, Part::whole, microbatch, block, dependencies)};
      backward_weight(Part::whole, microbatch, block, dependencies);
      break;
    case BlockKind::head: {
      // Weight gradients are not deferred, because the gradient of the logits is not stored.
      const Dependencies logits = backward_dependencies_[{block, microbatch}];
      dependencies.insert(dependencies.end(), logits.begin(), logits.end());
      const Dependencies input = gather_sequence({Op::backward_input, Part::whole, microbatch, block}, {});
      dependencies.insert(dependencies.end(), input.begin(), input.end());
      dependencies =
          reduce_partial({Op::backward_input, Part::whole, microbatch, block, true},
                         {compute(Op::backward_input, Part::whole, microbatch, block, dependencies)});
      // Only BERT's transform layer has a separate weight gradient, computed from the summed gradient.
      backward_weight(Part::whole, microbatch, block, model_.is_bert() ? dependencies : Dependencies{});
      break;
    }
  }
  recent_computes_.push_back(last_compute_);
  if (with_weights || kind(block) == BlockKind::head || kind(block) == BlockKind::custom)
    finish_weight_gradients(microbatch, block);
  return dependencies;
}

Dependencies StepCompiler::backward_half(Part part, int microbatch, int block, Dependencies dependencies,
                                         bool with_weights) {
  dependencies =
      gather_sequence({Op::backward_input, part, microbatch, block, true}, std::move(dependencies));
  const ServedCompute operand{Op::backward_weight, part, microbatch, block};
  const Dependencies input = with_weights ? gather_sequence(operand, {}) : Dependencies{};
  const Dependencies input_gradient =
      part == Part::attention
          ? backward_attention_input(microbatch, block, dependencies)
          : Dependencies{compute(Op::backward_input, part, microbatch, block, dependencies)};
  dependencies = reduce_partial({Op::backward_input, part, microbatch, block, true}, input_gradient);
  if (with_weights) backward_weight(part, microbatch, block, input);
  return dependencies;
}

void StepCompiler::backward_weight(Part part, int microbatch, int block, const Dependencies& dependencies) {
  compute(Op::backward_weight, part, microbatch, block, dependencies);
}

void StepCompiler::backward_weights(int microbatch, int block) {
  switch (kind(block)) {
    case BlockKind::embedding:
      backward_weight(Part::whole, microbatch, block, backward_dependencies_[{block, microbatch}]);
      break;
    case BlockKind::layer:
      if (has_experts(block)) {
        for (const Part part : {Part::experts, Part::router}) backward_weight(part, microbatch, block, {});
      } else {
        backward_weight(Part::mlp, microbatch, block,
                        gather_sequence({Op::backward_weight, Part::mlp, microbatch, block}, {}));
      }
      backward_weight(Part::attention, microbatch, block,
                      gather_sequence({Op::backward_weight, Part::attention, microbatch, block}, {}));
      break;
    case BlockKind::head:
    case BlockKind::custom:
      return;  // computed together with the input gradient
  }
  finish_weight_gradients(microbatch, block);
}

void StepCompiler::finish_weight_gradients(int microbatch, int block) {
  const int remaining = --remaining_weight_gradients_[block];
  reduce_gradients(block, microbatch, remaining == 0);
}

}  // namespace optimus
