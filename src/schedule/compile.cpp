// Compiles a plan into the step program of one device: first the slots of the schedule in order, each with
// its receives, parameter gathers, blocks and sends, then the end of the step.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "schedule/step_compiler.h"

namespace optimus {

StepCompiler::StepCompiler(const Plan& plan, const ModelSpec& model, int device, bool has_buffers)
    : plan_(plan),
      model_(model),
      location_(location_of(plan, device)),
      pipeline_(plan.pipelines[static_cast<std::size_t>(location_.pipeline)]),
      stage_(pipeline_.stages[static_cast<std::size_t>(location_.stage)]),
      device_(device),
      has_buffers_(has_buffers),
      sizes_(plan, model, location_),
      builder_(device, location_),
      needs_sync_(plan.pipelines.size() > 1) {
  for (const int block : own_blocks()) {
    builder_.add_buffer(BufferKind::weights, block, -1, sizes_.state(block, StateKind::weights));
    builder_.add_buffer(BufferKind::gradients, block, -1, sizes_.state(block, StateKind::gradients));
    const Bytes optimizer = sizes_.state(block, StateKind::optimizer);
    if (!strategy(block).offload) builder_.add_buffer(BufferKind::optimizer_state, block, -1, optimizer);
    if (const Bytes copy = sizes_.copy_state(block); copy.value > 0)
      builder_.add_buffer(BufferKind::copy_state, block, -1, copy);
    remaining_weight_gradients_[block] = static_cast<int>(pipeline_.microbatches.size());
  }
  if (is_asynchronous(plan.schedule)) stash_weights();
}

// PipeDream stores the newest weights and one older version per additional micro-batch in flight. PipeMare
// stores corrected weights for the backward pass, and the velocity of the weights in the data type of the
// gradients.
void StepCompiler::stash_weights() {
  const int versions = std::min<int>(static_cast<int>(pipeline_.stages.size()) - location_.stage,
                                     static_cast<int>(pipeline_.microbatches.size()));
  const auto stash = [&](int block, int number, StateKind kind) {
    builder_.add_buffer(BufferKind::stashed_weights, block, number,
                        sizes_.part(block, kind) + sizes_.experts(block, kind));
  };
  for (const int block : own_blocks()) {
    if (plan_.schedule == Schedule::pipedream) {
      for (int v = 1; v < versions; ++v) stash(block, v, StateKind::weights);
    } else if (versions > 1) {
      stash(block, 1, StateKind::weights), stash(block, 2, StateKind::gradients);
    }
  }
}

namespace {

// Moves each parameter gather and receive forward in the list, to the first position at which its waits are
// satisfied, so that it overlaps with compute. The other instructions keep their order, and so do the moved
// instructions.
Program hoist_gathers_and_receives(Program program) {
  const std::vector<Instruction>& old = program.instructions;
  const auto is_moved = [](const Instruction& instruction) {
    return instruction.lane == Lane::gather || instruction.op == Op::receive;
  };
  // (index of the instruction after which to insert, -1: at the start; index of the moved instruction)
  std::vector<std::pair<int, int>> insertions;
  int gather_after = -1, receive_after = -1;
  for (int i = 0; i < std::ssize(old); ++i) {
    const Instruction& instruction = old[static_cast<std::size_t>(i)];
    if (!is_moved(instruction)) continue;
    int& after = instruction.op == Op::receive ? receive_after : gather_after;
    for (const int wait : program.waits(instruction)) after = std::max(after, wait);
    insertions.emplace_back(after, i);
  }
  if (insertions.empty()) return program;
  std::stable_sort(insertions.begin(), insertions.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<int> order;
  auto next = insertions.begin();
  const auto insert_moved = [&](int i) {
    for (; next != insertions.end() && next->first <= i; ++next) order.push_back(next->second);
  };
  insert_moved(-1);
  for (int i = 0; i < std::ssize(old); ++i) {
    if (!is_moved(old[static_cast<std::size_t>(i)])) order.push_back(i);
    insert_moved(i);
  }
  std::vector<int> new_index(old.size());
  std::vector<Instruction> instructions;
  for (std::size_t k = 0; k < order.size(); ++k) {
    new_index[static_cast<std::size_t>(order[k])] = static_cast<int>(k);
    instructions.push_back(old[static_cast<std::size_t>(order[k])]);
  }
  program.instructions = std::move(instructions);
  for (int& wait : program.wait_pool) wait = new_index[static_cast<std::size_t>(wait)];
  return program;
}

}  // namespace

Program StepCompiler::compile() {
  if (stage_.chunks.front().first_block() == 0 || stage_.chunks.back().end_block() == plan_.num_blocks)
    load_batch_ = builder_.add({.op = Op::load_batch, .lane = Lane::host}, {});
  const StagePosition position{location_.stage, static_cast<int>(pipeline_.stages.size()),
                               static_cast<int>(pipeline_.microbatches.size()),
                               static_cast<int>(stage_.chunks.size())};
  int slot_number = 0;
  for (const Slot& next : order_of(plan_.schedule, position)) {
    builder_.begin_slot(slot_number++);
    slot(next);
  }
  builder_.begin_slot(-1);
  is_asynchronous(plan_.schedule) ? report_step() : finish_step();
  return has_buffers_ ? hoist_gathers_and_receives(builder_.take()) : builder_.take();
}

void StepCompiler::slot(const Slot& slot) {
  compile_slot(slot);
  last_forward_ = slot.work == Work::forward ? std::pair(slot.microbatch, slot.chunk) : std::pair(-1, -1);
}

void StepCompiler::compile_slot(const Slot& slot) {
  switch (slot.work) {
    case Work::forward:
      return forward(slot.microbatch, slot.chunk);
    case Work::backward:
      return backward(slot.microbatch, slot.chunk, true);
    case Work::backward_input:
      return backward(slot.microbatch, slot.chunk, false);
    case Work::backward_weight:
      return backward_weights_only(slot.microbatch, slot.chunk);
    case Work::update:
      return update_blocks({}, slot.microbatch);
  }
}

void StepCompiler::forward(int microbatch, int chunk_number) {
  const Chunk& chunk = stage_.chunks[static_cast<std::size_t>(chunk_number)];
  Dependencies ready;
  if (chunk.first_block() == 0) {
    ready = {load_batch_};
  } else {
    const Neighbour from = previous_neighbour(chunk_number);
    ready = add_crossing(*from.stage, from.block, stage_, chunk.first_block(), microbatch, false,
                         local_chunk_waits_[{chunk.first_block(), microbatch}]);
  }
  if (chunk.end_block() == plan_.num_blocks) ready.push_back(load_batch_);  // waits for the targets
  ready.insert(ready.end(), pending_updates_.begin(), pending_updates_.end());
  pending_updates_.clear();
  for (int block = chunk.first_block(); block < chunk.end_block(); ++block) {
    if (block > chunk.first_block())
      ready = add_crossing(stage_, block - 1, stage_, block, microbatch, false, ready);
    ready = gather_parameters(block, std::move(ready));
    ready = forward_block(microbatch, block, std::move(ready), Op::forward);
  }
  if (chunk.end_block() < plan_.num_blocks) {
    const Neighbour to = next_neighbour(chunk_number);
    if (to.stage == &stage_)
      local_chunk_waits_[{to.block, microbatch}] = ready;  // sent at the start of the slot of chunk `to`
    else
      add_crossing(stage_, chunk.end_block() - 1, *to.stage, to.block, microbatch, false, ready);
  }
}

void StepCompiler::backward(int microbatch, int chunk_number, bool with_weights) {
  const Chunk& chunk = stage_.chunks[static_cast<std::size_t>(chunk_number)];
  Dependencies ready;
  if (chunk.end_block() < plan_.num_blocks) {
    const Neighbour from = next_neighbour(chunk_number);
    ready = add_crossing(*from.stage, from.block, stage_, chunk.end_block() - 1, microbatch, true,
                         local_chunk_waits_[{chunk.end_block() - 1, microbatch}]);
  }
  ready.insert(ready.end(), pending_updates_.begin(), pending_updates_.end());
  for (int block = chunk.end_block() - 1; block >= chunk.first_block(); --block) {
    if (block < chunk.end_block() - 1)
      ready = add_crossing(stage_, block + 1, stage_, block, microbatch, true, ready);
    if (is_recomputed(block) && block + 1 == recompute_group(block).end)
      ready = recompute(microbatch, block, std::move(ready));  // gathers the weights for the backward pass
    else if (needs_gather(block, microbatch, chunk_number))
      ready = gather_parameters(block, std::move(ready));
    ready = backward_block(microbatch, block, std::move(ready), with_weights);
  }
  if (chunk.first_block() > 0) {
    const Neighbour to = previous_neighbour(chunk_number);
    if (to.stage == &stage_)
      local_chunk_waits_[{to.block, microbatch}] = ready;
    else
      add_crossing(stage_, chunk.first_block(), *to.stage, to.block, microbatch, true, ready);
  }
}

bool StepCompiler::has_backward_weights(int block) const {
  return kind(block) != BlockKind::embedding || model_.norm_position == NormPosition::post;
}

// If the preceding slot ran the forward pass of the last block, its gathered weights are still in memory. For
// custom blocks, autograd keeps the weights in any case.
bool StepCompiler::needs_gather(int block, int microbatch, int chunk) const {
  const bool is_last = block + 1 == plan_.num_blocks;
  if (is_last && (kind(block) == BlockKind::custom || last_forward_ == std::pair(microbatch, chunk)))
    return false;
  return has_backward_weights(block);
}

void StepCompiler::backward_weights_only(int microbatch, int chunk_number) {
  const Chunk& chunk = stage_.chunks[static_cast<std::size_t>(chunk_number)];
  for (int block = chunk.end_block() - 1; block >= chunk.first_block(); --block)
    backward_weights(microbatch, block);
}

StepCompiler::Neighbour StepCompiler::previous_neighbour(int chunk) const {
  const bool wraps = location_.stage == 0;
  const Stage& stage =
      wraps ? pipeline_.stages.back() : pipeline_.stages[static_cast<std::size_t>(location_.stage - 1)];
  return {&stage, stage.chunks[static_cast<std::size_t>(wraps ? chunk - 1 : chunk)].end_block() - 1};
}

StepCompiler::Neighbour StepCompiler::next_neighbour(int chunk) const {
  const bool wraps = location_.stage + 1 == std::ssize(pipeline_.stages);
  const Stage& stage =
      wraps ? pipeline_.stages.front() : pipeline_.stages[static_cast<std::size_t>(location_.stage + 1)];
  return {&stage, stage.chunks[static_cast<std::size_t>(wraps ? chunk + 1 : chunk)].first_block()};
}

Dependencies StepCompiler::add_crossing(const Stage& from, int from_block, const Stage& to, int to_block,
                                        int microbatch, bool is_backward, const Dependencies& dependencies) {
  const LayerStrategy &from_strategy = strategy_of(from, from_block),
                      &to_strategy = strategy_of(to, to_block);
  if (&from == &to && is_same_split(from_strategy, to_strategy)) return dependencies;
  const Crossing crossing{from,
                          to,
                          from_block,
                          to_block,
                          {static_cast<int>(from.devices.size()), from_strategy},
                          {static_cast<int>(to.devices.size()), to_strategy},
                          output_width(model_, std::min(from_block, to_block))};
  if (&from == &stage_) send(crossing, microbatch, is_backward, dependencies);
  if (&to != &stage_) return {};
  Dependencies receives = receive(crossing, microbatch, is_backward);
  if (crossing.is_inside()) {
    // the data that stays on this device is copied
    receives.insert(receives.end(), dependencies.begin(), dependencies.end());
    if (has_buffers_)
      received_buffers_[{is_backward, to_block, microbatch}].push_back(
          outgoing(from_block, microbatch, is_backward));
  }
  return join_parts(crossing, microbatch, is_backward, std::move(receives));
}

namespace {

Instruction make_message(Op op, int peer, int microbatch, bool is_backward, std::int64_t bytes) {
  Instruction instruction{
      .op = op, .lane = Lane::transfer, .is_backward = is_backward, .microbatch = microbatch};
  instruction.peer = peer, instruction.bytes = bytes;
  return instruction;
}

}  // namespace

// At most two crossings of one kind have messages in flight, because a send waits for the messages of the
// crossing before the previous one.
Dependencies StepCompiler::send(const Crossing& crossing, int microbatch, bool is_backward,
                                Dependencies dependencies) {
  std::vector<Dependencies>& sent = sent_messages_[{is_backward, &crossing.to}];
  if (sent.size() >= 2) {
    const Dependencies& previous_dependencies = sent[sent.size() - 2];
    dependencies.insert(dependencies.end(), previous_dependencies.begin(), previous_dependencies.end());
  }
  Dependencies messages;
  const Bytes full_bytes = sizes_.boundary(crossing.from_block, sequences(microbatch), crossing.width);
  for (const Route& route :
       routes(true, crossing.from_side, crossing.to_side, sequences(microbatch), crossing.width)) {
    const int peer = crossing.to.devices[static_cast<std::size_t>(route.peer)];
    if (peer == device_) continue;
    const std::int64_t bytes = route.num_elements * bytes_of(plan_.precision);
    Instruction instruction = make_message(Op::send, peer, microbatch, is_backward, bytes);
    instruction.block = crossing.from_block, instruction.chunk = chunk_of(crossing.from_block);
    messages.push_back(builder_.add(instruction, dependencies));
    if (!has_buffers_) continue;
    builder_.use(outgoing(crossing.from_block, microbatch, is_backward), false);
    // A message with the whole output is sent directly from the buffer `outgoing`. A message with only a part
    // of it is packed into a separate buffer.
    if (bytes < full_bytes.value)
      builder_.use(builder_.add_buffer(BufferKind::message, crossing.from_block, microbatch, Bytes(bytes)),
                   true);
  }
  sent.push_back(messages);
  return messages;
}

// A receive waits until the data of the crossing before the previous one have been read, because this frees
// their memory.
Dependencies StepCompiler::receive(const Crossing& crossing, int microbatch, bool is_backward) {
  std::vector<int>& buffers = received_buffers_[{is_backward, crossing.to_block, microbatch}];
  Dependencies free_memory_waits, receives;
  if (const auto& readers = readers_[is_backward]; readers.size() >= 2)
    free_memory_waits = {readers[readers.size() - 2]};
  for (const Route& route :
       routes(false, crossing.from_side, crossing.to_side, sequences(microbatch), crossing.width)) {
    const int peer = crossing.from.devices[static_cast<std::size_t>(route.peer)];
    if (peer == device_) continue;
    const std::int64_t bytes = route.num_elements * bytes_of(plan_.precision);
    Instruction instruction = make_message(Op::receive, peer, microbatch, is_backward, bytes);
    instruction.block = crossing.to_block, instruction.chunk = chunk_of(crossing.to_block);
    receives.push_back(builder_.add(instruction, free_memory_waits));
    if (!has_buffers_) continue;
    buffers.push_back(builder_.add_buffer(BufferKind::message, crossing.to_block, microbatch, Bytes(bytes)));
    builder_.use(buffers.back(), true);
  }
  return receives;
}

// Each tensor-parallel rank has received one slice, so that no byte crosses a slow link twice. Here the ranks
// of the group gather the whole activation.
Dependencies StepCompiler::join_parts(const Crossing& crossing, int microbatch, bool is_backward,
                                      Dependencies receives) {
  const LayerStrategy& strategy = crossing.to_side.strategy;
  if (strategy.tp == 1 || strategy.sequence_parallel) return receives;
  const int block = crossing.to_block;
  const Bytes full_bytes = sizes_.whole_activation(block, sequences(microbatch));
  const int gather = tensor_collective(
      Op::all_gather, {Op::receive, Part::whole, microbatch, block, is_backward}, full_bytes, receives);
  if (has_buffers_) {
    std::vector<int>& arrivals = received_buffers_[{is_backward, block, microbatch}];
    for (const int buffer : arrivals) builder_.use(buffer, false);
    const int joined_buffer =
        builder_.add_buffer(BufferKind::joined, block, microbatch,
                            sizes_.joined_activation(block, sequences(microbatch), crossing.width));
    builder_.use(joined_buffer, true);
    arrivals = {joined_buffer};
  }
  return {gather};
}

int StepCompiler::outgoing(int block, int microbatch, bool is_backward) {
  const auto [at, is_new] = outgoing_.try_emplace({is_backward, block, microbatch}, -1);
  if (is_new)
    at->second = builder_.add_buffer(
        BufferKind::outgoing, block, microbatch,
        sizes_.boundary(block, sequences(microbatch), output_width(model_, is_backward ? block - 1 : block)));
  return at->second;
}

// A recomputation waits for the gradient of its backward pass but does not read it.
void StepCompiler::use_received(const Instruction& instruction) {
  const Op op = instruction.lane == Lane::tensor ? instruction.serves : instruction.op;
  if (op != Op::forward && op != Op::backward_input && op != Op::backward_weight) return;
  const bool is_backward = op != Op::forward;
  const auto at = received_buffers_.find({is_backward, instruction.block, instruction.microbatch});
  if (at == received_buffers_.end()) return;
  for (const int buffer : std::exchange(at->second, {})) builder_.use(buffer, false);
  if (instruction.lane == Lane::tensor) return;
  readers_[is_backward].push_back(last_compute_);
  received_buffers_.erase(at);
}

const std::vector<Route>& StepCompiler::routes(bool is_outgoing, const Side& from, const Side& to,
                                               int sequences, std::int64_t width) {
  const auto is_same = [](const Side& a, const Side& b) {
    return a.num_devices == b.num_devices && is_same_split(a.strategy, b.strategy);
  };
  for (const KnownRoutes& known_routes : known_routes_)
    if (known_routes.is_outgoing == is_outgoing && known_routes.sequences == sequences &&
        known_routes.width == width && is_same(known_routes.from, from) && is_same(known_routes.to, to))
      return known_routes.routes;
  constexpr std::size_t kMaxCachedRoutes = 8;
  if (known_routes_.size() == kMaxCachedRoutes) known_routes_.clear();
  known_routes_.push_back({is_outgoing, from, to, sequences, width,
                           (is_outgoing ? routes_out : routes_in)(from, to, location_.index, sequences,
                                                                  plan_.sequence_length, width)});
  return known_routes_.back().routes;
}

Dependencies StepCompiler::gather_parameters(int block, Dependencies waits) {
  const LayerStrategy& s = strategy(block);
  const bool has_sharded_experts = has_experts(block) && expert_shard_count(stage_, s) > 1;
  if (s.zero < 3 || (shard_count(stage_, s) == 1 && !has_sharded_experts)) return waits;
  // At most two blocks have gathered weights at the same time, because a gather waits for the last
  // computation of the block before the previous one.
  Dependencies free_memory_waits;
  if (recent_computes_.size() >= 2)
    free_memory_waits.push_back(recent_computes_[recent_computes_.size() - 2]);
  const Bytes dense = sizes_.part(block, StateKind::weights),
              experts = sizes_.experts(block, StateKind::weights);
  gathered_weights_[block] = builder_.add_buffer(BufferKind::gathered_weights, block, -1,
                                                 sizes_.whole_buffer(block, StateKind::weights));
  const auto gather = [&](int group, Bytes bytes) {
    Instruction instruction{
        .op = Op::gather_parameters, .lane = Lane::gather, .chunk = chunk_of(block), .block = block};
    instruction.group = group, instruction.bytes = bytes.value;
    waits.push_back(builder_.add(instruction, free_memory_waits));
    builder_.use(gathered_weights_[block], true);
    use_exchange(block, sizes_.exchange_buffer(block, StateKind::weights));
  };
  if (shard_count(stage_, s) > 1) gather(data_group(block, Role::gather), dense);
  if (has_sharded_experts) gather(expert_data_group(block, Role::gather), experts);
  return waits;
}

int StepCompiler::chunk_of(int block) const {
  for (std::size_t c = 0; c < stage_.chunks.size(); ++c)
    if (block >= stage_.chunks[c].first_block() && block < stage_.chunks[c].end_block())
      return static_cast<int>(c);
  return -1;
}

std::vector<int> StepCompiler::own_blocks() const {
  std::vector<int> blocks;
  for (const Chunk& chunk : stage_.chunks)
    for (int block = chunk.first_block(); block < chunk.end_block(); ++block) blocks.push_back(block);
  return blocks;
}

Program compile(const Plan& plan, const ModelSpec& model, int device) {
  return StepCompiler(plan, model, device).compile();
}

Program compile_without_buffers(const Plan& plan, const ModelSpec& model, int device) {
  return StepCompiler(plan, model, device, false).compile();
}

std::vector<Program> compile_all(const Plan& plan, const ModelSpec& model) {
  std::vector<Program> programs;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const int device : stage.devices) programs.push_back(compile(plan, model, device));
  return programs;
}

}  // namespace optimus
