// From a plan to a device's step program: the slots of the schedule in order, each as receives, parameter gathers,
// blocks and sends; then the end of the step.
#include <algorithm>

#include "base/error.h"
#include "schedule/step_compiler.h"

namespace optimus {

StepCompiler::StepCompiler(const Plan& plan, const ModelSpec& model, int device, bool has_buffers)
    : plan_(plan),
      model_(model),
      seat_(seat_of(plan, device)),
      pipeline_(plan.pipelines[static_cast<std::size_t>(seat_.pipeline)]),
      stage_(pipeline_.stages[static_cast<std::size_t>(seat_.stage)]),
      device_(device),
      has_buffers_(has_buffers),
      sizes_(plan, model, seat_),
      builder_(device, seat_),
      needs_sync_(plan.pipelines.size() > 1) {
  for (const int block : own_blocks()) {
    builder_.buffer(BufferKind::weights, block, -1, sizes_.state(block, StateKind::weights));
    builder_.buffer(BufferKind::gradients, block, -1, sizes_.state(block, StateKind::gradients));
    const Bytes optimizer = sizes_.state(block, StateKind::optimizer);
    if (!strategy(block).offload) builder_.buffer(BufferKind::optimizer_state, block, -1, optimizer);
    if (plan.buddy > 0 && strategy(block).zero > 0 && !strategy(block).offload)
      builder_.buffer(BufferKind::buddy_state, block, -1, optimizer);
    weights_left_[block] = static_cast<int>(pipeline_.microbatches.size());
  }
  if (plan.schedule == Schedule::pipedream) {
    // The newest weights and one older version for each further micro-batch under way.
    const int versions = std::min<int>(static_cast<int>(pipeline_.stages.size()) - seat_.stage,
                                       static_cast<int>(pipeline_.microbatches.size()));
    for (const int block : own_blocks())
      for (int v = 1; v < versions; ++v)
        builder_.buffer(BufferKind::stashed_weights, block, v,
                        sizes_.part(block, StateKind::weights) + sizes_.experts(block, StateKind::weights));
  }
}

namespace {

// Moves gathers of parameters up in the list, to where nothing keeps them waiting any more, so that they are under way while
// the block before is computed. Everything else keeps its order.
Program with_early_gathers(Program program) {
  const std::vector<Instruction>& old = program.instructions;
  std::vector<std::pair<int, int>> places;  // behind which instruction (-1: at the begin), which gather
  int behind = -1;
  for (int i = 0; i < std::ssize(old); ++i) {
    const Instruction& at = old[static_cast<std::size_t>(i)];
    if (at.lane != Lane::gather) continue;
    for (const int wait : program.waits(at)) behind = std::max(behind, wait);
    places.emplace_back(behind, i);
  }
  if (places.empty()) return program;
  std::vector<int> order;
  auto next = places.begin();
  const auto place = [&](int i) {
    for (; next != places.end() && next->first <= i; ++next) order.push_back(next->second);
  };
  place(-1);
  for (int i = 0; i < std::ssize(old); ++i) {
    if (old[static_cast<std::size_t>(i)].lane != Lane::gather) order.push_back(i);
    place(i);
  }
  std::vector<int> moved_to(old.size());
  std::vector<Instruction> instructions;
  for (std::size_t k = 0; k < order.size(); ++k) {
    moved_to[static_cast<std::size_t>(order[k])] = static_cast<int>(k);
    instructions.push_back(old[static_cast<std::size_t>(order[k])]);
  }
  program.instructions = std::move(instructions);
  for (int& wait : program.wait_pool) wait = moved_to[static_cast<std::size_t>(wait)];
  return program;
}

}  // namespace

Program StepCompiler::compile() {
  if (stage_.chunks.front().first() == 0 || stage_.chunks.back().end() == plan_.num_blocks)
    batch_loaded_ = builder_.add({.op = Op::load_batch, .lane = Lane::host}, {});
  const StagePosition position{seat_.stage, static_cast<int>(pipeline_.stages.size()),
                               static_cast<int>(pipeline_.microbatches.size()),
                               static_cast<int>(stage_.chunks.size())};
  int number = 0;
  for (const Slot& next : order_of(plan_.schedule, position)) {
    builder_.begin_slot(number++);
    slot(next);
  }
  builder_.begin_slot(-1);
  if (!is_asynchronous(plan_.schedule)) finish_step();
  return has_buffers_ ? with_early_gathers(builder_.take()) : builder_.take();
}

void StepCompiler::slot(const Slot& slot) {
  switch (slot.work) {
    case Work::forward:
      return forward(slot.microbatch, slot.chunk);
    case Work::backward:
      return backward(slot.microbatch, slot.chunk, true);
    case Work::backward_input:
      return backward(slot.microbatch, slot.chunk, false);
    case Work::backward_weight:
      return weights_only(slot.microbatch, slot.chunk);
    case Work::update:
      return update_blocks({}, slot.microbatch);
  }
}

void StepCompiler::forward(int microbatch, int chunk_number) {
  const Chunk& chunk = stage_.chunks[static_cast<std::size_t>(chunk_number)];
  Frontier ready;
  if (chunk.first() == 0) {
    ready = {batch_loaded_};
  } else {
    const Neighbour from = before(chunk_number);
    ready = cross(*from.stage, from.block, stage_, chunk.first(), microbatch, false,
                  handed_on_[{chunk.first(), microbatch}]);
  }
  if (chunk.end() == plan_.num_blocks) ready.push_back(batch_loaded_);  // the targets
  ready.insert(ready.end(), fresh_.begin(), fresh_.end());
  fresh_.clear();
  for (int block = chunk.first(); block < chunk.end(); ++block) {
    if (block > chunk.first()) ready = cross(stage_, block - 1, stage_, block, microbatch, false, ready);
    ready = gather_parameters(block, std::move(ready));
    ready = forward_block(microbatch, block, std::move(ready), Op::forward);
  }
  if (chunk.end() < plan_.num_blocks) {
    const Neighbour to = after(chunk_number);
    if (to.stage == &stage_)
      handed_on_[{to.block, microbatch}] = ready;  // moved when that chunk begins
    else
      cross(stage_, chunk.end() - 1, *to.stage, to.block, microbatch, false, ready);
  }
}

void StepCompiler::backward(int microbatch, int chunk_number, bool with_weights) {
  const Chunk& chunk = stage_.chunks[static_cast<std::size_t>(chunk_number)];
  Frontier ready;
  if (chunk.end() < plan_.num_blocks) {
    const Neighbour from = after(chunk_number);
    ready = cross(*from.stage, from.block, stage_, chunk.end() - 1, microbatch, true,
                  handed_on_[{chunk.end() - 1, microbatch}]);
  }
  ready.insert(ready.end(), fresh_.begin(), fresh_.end());
  for (int block = chunk.end() - 1; block >= chunk.first(); --block) {
    if (block < chunk.end() - 1) ready = cross(stage_, block + 1, stage_, block, microbatch, true, ready);
    if (is_recomputed(block) && block + 1 == recompute_group(block).end)
      ready = recompute(microbatch, block, std::move(ready));  // with the weights that the backward needs
    else if (kind(block) != BlockKind::custom || block + 1 < plan_.num_blocks)
      ready = gather_parameters(block,
                                std::move(ready));  // autograd of a last block still has those of its forward
    ready = backward_block(microbatch, block, std::move(ready), with_weights);
  }
  if (chunk.first() > 0) {
    const Neighbour to = before(chunk_number);
    if (to.stage == &stage_)
      handed_on_[{to.block, microbatch}] = ready;
    else
      cross(stage_, chunk.first(), *to.stage, to.block, microbatch, true, ready);
  }
}

void StepCompiler::weights_only(int microbatch, int chunk_number) {
  const Chunk& chunk = stage_.chunks[static_cast<std::size_t>(chunk_number)];
  for (int block = chunk.end() - 1; block >= chunk.first(); --block) backward_weights(microbatch, block);
}

StepCompiler::Neighbour StepCompiler::before(int chunk) const {
  const bool wraps = seat_.stage == 0;
  const Stage& stage =
      wraps ? pipeline_.stages.back() : pipeline_.stages[static_cast<std::size_t>(seat_.stage - 1)];
  return {&stage, stage.chunks[static_cast<std::size_t>(wraps ? chunk - 1 : chunk)].end() - 1};
}

StepCompiler::Neighbour StepCompiler::after(int chunk) const {
  const bool wraps = seat_.stage + 1 == std::ssize(pipeline_.stages);
  const Stage& stage =
      wraps ? pipeline_.stages.front() : pipeline_.stages[static_cast<std::size_t>(seat_.stage + 1)];
  return {&stage, stage.chunks[static_cast<std::size_t>(wraps ? chunk + 1 : chunk)].first()};
}

Frontier StepCompiler::cross(const Stage& from, int from_block, const Stage& to, int to_block, int microbatch,
                             bool is_backward, const Frontier& ready) {
  const LayerStrategy &from_strategy = strategy_of(from, from_block),
                      &to_strategy = strategy_of(to, to_block);
  const bool is_inside = &from == &to;
  if (is_inside && is_same_split(from_strategy, to_strategy)) return ready;
  const Side from_side{static_cast<int>(from.devices.size()), from_strategy};
  const Side to_side{static_cast<int>(to.devices.size()), to_strategy};
  const int bytes = bytes_of(plan_.precision);
  const std::int64_t width = output_width(model_, std::min(from_block, to_block));
  const auto message = [&](Op op, int peer, const Route& route) {
    Instruction instruction{
        .op = op, .lane = Lane::transfer, .is_backward = is_backward, .microbatch = microbatch};
    instruction.block = &from == &stage_ ? from_block : to_block;
    instruction.chunk = chunk_of(instruction.block);
    instruction.peer = peer;
    instruction.bytes = route.num_elements * bytes;
    return instruction;
  };
  if (&from == &stage_)
    for (const Route& route : routes(true, from_side, to_side, sequences(microbatch), width))
      if (const int peer = to.devices[static_cast<std::size_t>(route.peer)]; peer != device_)
        builder_.add(message(Op::send, peer, route), ready);
  if (&to != &stage_) return {};
  Frontier arrived = is_inside ? ready : Frontier{};
  boundary_ = -1, boundary_is_gradient_ = is_backward;
  // Two buffers for each direction: a receive waits until the one before the last has been read.
  Frontier room;
  if (const auto& readers = boundary_readers_[is_backward]; readers.size() >= 2)
    room = {readers[readers.size() - 2]};
  for (const Route& route : routes(false, from_side, to_side, sequences(microbatch), width))
    if (const int peer = from.devices[static_cast<std::size_t>(route.peer)]; peer != device_) {
      arrived.push_back(builder_.add(message(Op::receive, peer, route), room));
      if (boundary_ < 0)
        boundary_ = builder_.buffer(BufferKind::boundary, to_block, microbatch,
                                    sizes_.boundary(to_block, sequences(microbatch), width));
      builder_.use(boundary_, true);
    }
  if (to_strategy.tp == 1 || to_strategy.sequence_parallel) return arrived;
  const Bytes whole = sizes_.whole_activation(to_block, sequences(microbatch));
  return {tensor_collective(Op::all_gather, {Op::receive, Part::whole, microbatch, to_block, is_backward},
                            whole, arrived)};
}

const std::vector<Route>& StepCompiler::routes(bool is_out, const Side& from, const Side& to, int sequences,
                                               std::int64_t width) {
  const auto is_same = [](const Side& a, const Side& b) {
    return a.num_devices == b.num_devices && is_same_split(a.strategy, b.strategy);
  };
  for (const KnownRoutes& known : known_routes_)
    if (known.is_out == is_out && known.sequences == sequences && known.width == width &&
        is_same(known.from, from) && is_same(known.to, to))
      return known.routes;
  constexpr std::size_t kMost = 8;
  if (known_routes_.size() == kMost) known_routes_.clear();
  known_routes_.push_back(
      {is_out, from, to, sequences, width,
       (is_out ? routes_out : routes_in)(from, to, seat_.index, sequences, plan_.sequence_length, width)});
  return known_routes_.back().routes;
}

Frontier StepCompiler::gather_parameters(int block, Frontier waits) {
  const LayerStrategy& s = strategy(block);
  const bool gathers_experts = has_experts(block) && expert_shard_count(stage_, s) > 1;
  if (s.zero < 3 || (shard_count(stage_, s) == 1 && !gathers_experts)) return waits;
  // Whole weights of this block and of the next are there at a time: a gather waits until the block two before is done.
  Frontier room;
  if (recent_computes_.size() >= 2) room.push_back(recent_computes_[recent_computes_.size() - 2]);
  const Bytes dense = sizes_.part(block, StateKind::weights),
              experts = sizes_.experts(block, StateKind::weights);
  gathered_[block] = builder_.buffer(BufferKind::gathered_weights, block, -1,
                                     sizes_.whole_buffer(block, StateKind::weights));
  const auto gather = [&](int group, Bytes bytes) {
    Instruction instruction{
        .op = Op::gather_parameters, .lane = Lane::gather, .chunk = chunk_of(block), .block = block};
    instruction.group = group, instruction.bytes = bytes.value;
    waits.push_back(builder_.add(instruction, room));
    builder_.use(gathered_[block], true);
    use_exchange(block, sizes_.exchange_buffer(block, StateKind::weights));
  };
  if (shard_count(stage_, s) > 1) gather(data_group(block, Role::gather), dense);
  if (gathers_experts) gather(expert_data_group(block, Role::gather), experts);
  return waits;
}

int StepCompiler::chunk_of(int block) const {
  for (std::size_t c = 0; c < stage_.chunks.size(); ++c)
    if (block >= stage_.chunks[c].first() && block < stage_.chunks[c].end()) return static_cast<int>(c);
  return -1;
}

std::vector<int> StepCompiler::own_blocks() const {
  std::vector<int> blocks;
  for (const Chunk& chunk : stage_.chunks)
    for (int block = chunk.first(); block < chunk.end(); ++block) blocks.push_back(block);
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
