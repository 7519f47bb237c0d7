// Adds the instructions for gradients and updates: reductions inside the stage as soon as weight gradients
// are complete, sums with other stages and pipelines, the step gate (gradient norm and finiteness), the
// optimizer, and the gathers that distribute updated weights.
//
// Inside a stage, the devices with the same tensor-parallel rank form a data-parallel group. Gradients of
// sharded state are first reduced to shards inside the shard group, then summed over the replicas of each
// shard. A tensor that other stages or pipelines also own (a tied embedding; every tensor if there are
// several pipelines) is excluded from the sum over replicas and instead summed once over all its owners. If
// the tensor-parallel ranks of a replica have equal copies of a gradient (norms; shared key/value heads), the
// lowest of these ranks contributes to that sum and the others add zero.
#include <algorithm>
#include <utility>

#include "schedule/shared_sums.h"
#include "schedule/step_compiler.h"

namespace optimus {

int StepCompiler::data_group(int block, Role role) {
  const LayerStrategy& s = strategy(block);
  const int shards = shard_count(stage_, s), data = location_.index / s.tp, part = location_.index % s.tp;
  const int total = static_cast<int>(stage_.devices.size()) / s.tp;
  const bool is_over_shards = role == Role::shard || role == Role::gather;
  const int first = is_over_shards ? data / shards * shards : data % shards;
  const int step = is_over_shards ? 1 : shards, count = is_over_shards ? shards : total / shards;
  std::vector<int> members;
  for (int i = 0; i < count; ++i)
    members.push_back(stage_.devices[static_cast<std::size_t>((first + i * step) * s.tp + part)]);
  return builder_.intern_group(role, std::move(members));
}

int StepCompiler::expert_data_group(int block, Role role) {
  const LayerStrategy& s = strategy(block);
  const int shards = expert_shard_count(stage_, s), copy = location_.index / s.ep,
            part = location_.index % s.ep;
  const int total = static_cast<int>(stage_.devices.size()) / s.ep;
  const bool is_over_shards = role == Role::shard || role == Role::gather;
  const int first = is_over_shards ? copy / shards * shards : copy % shards;
  const int step = is_over_shards ? 1 : shards, count = is_over_shards ? shards : total / shards;
  std::vector<int> members;
  for (int i = 0; i < count; ++i)
    members.push_back(stage_.devices[static_cast<std::size_t>((first + i * step) * s.ep + part)]);
  return builder_.intern_group(role, std::move(members));
}

const std::map<std::vector<int>, Bytes>& StepCompiler::partial(int block) {
  const auto [at, is_new] = partial_.try_emplace({pattern(model_, block), &strategy(block)});
  if (is_new) at->second = sizes_.partial_gradients(block);
  return at->second;
}

void StepCompiler::reduce_gradients(int block, int microbatch, bool is_last) {
  const LayerStrategy& s = strategy(block);
  const bool is_async = is_asynchronous(plan_.schedule);
  const int shards = shard_count(stage_, s),
            replicas = static_cast<int>(stage_.devices.size()) / (s.tp * shards);
  const auto reduce = [&](int group, Bytes bytes) {
    send_pending_copies();
    Instruction instruction{
        .op = Op::reduce_gradients, .lane = Lane::reduce, .microbatch = microbatch, .chunk = chunk_of(block)};
    instruction.block = block, instruction.group = group, instruction.bytes = bytes.value;
    last_reduce_ = last_reductions_[block] = builder_.add(instruction, last_computes());
    if (const auto whole = whole_gradients_.find({block, microbatch}); whole != whole_gradients_.end())
      builder_.use(whole->second, false);
    const Role role = builder_.program().groups[static_cast<std::size_t>(group)].role;
    if (role == Role::shard) use_exchange(block, sizes_.exchange_buffer(block, StateKind::gradients));
    if (role == Role::tensor) use_exchange(block, bytes);
  };
  const bool is_final = is_last || is_async;
  const bool is_sharded_now = shards > 1 && (is_final || s.zero >= 2);
  // Before gradients are reduced to shards, the tensor-parallel ranks sum the gradients that each of them has
  // computed only partially.
  if (is_final || is_sharded_now)
    for (const auto& [parts, bytes] : partial(block)) reduce(tensor_subgroup(block, parts), bytes);
  // ZeRO 2 and 3 store only a shard of the summed gradient, so every micro-batch is reduced immediately.
  if (is_sharded_now) reduce(data_group(block, Role::shard), sizes_.part(block, StateKind::gradients));
  if (replicas > 1 && is_final && !needs_sync_) {
    const Bytes own_bytes = sizes_.part(block, StateKind::gradients) - sizes_.shared_gradients(block);
    if (own_bytes.value > 0) reduce(data_group(block, Role::replica), Bytes(own_bytes.value / shards));
  }
  // Gradients that other stages or pipelines also own are not complete yet.
  if (is_last && has_shard_copies(plan_, s) && !needs_sync_ && sizes_.shared_gradients(block).value == 0)
    pending_copies_.push_back(block);
  if (!has_experts(block)) return;
  const Bytes experts = sizes_.experts(block, StateKind::gradients);
  const int expert_shards = expert_shard_count(stage_, s),
            copies = static_cast<int>(stage_.devices.size()) / (s.ep * expert_shards);
  if (expert_shards > 1 && (is_final || s.zero >= 2)) reduce(expert_data_group(block, Role::shard), experts);
  if (copies > 1 && is_final && !needs_sync_)
    reduce(expert_data_group(block, Role::replica), Bytes(experts.value / expert_shards));
}

// Adds a buffer for the concatenated shards of all members to the last added gather or reduction.
void StepCompiler::use_exchange(int block, Bytes bytes) {
  if (has_buffers_) builder_.use(builder_.add_buffer(BufferKind::exchange, block, -1, bytes), true);
}

void StepCompiler::sync_gradients() {
  for (const SharedSum& sum : shared_sums(plan_, model_, device_)) {
    Instruction instruction{.op = Op::sync_gradients, .lane = Lane::reduce, .block = sum.block};
    instruction.group = builder_.intern_group(Role::sync, sum.members);
    instruction.bytes = sum.bytes.value;
    last_reduce_ = last_reductions_[sum.block] = builder_.add(instruction, last_computes());
    use_exchange(sum.block, sum.bytes);
  }
}

Instruction StepCompiler::copy_message(Op op, int block, int distance) {
  const LayerStrategy& s = strategy(block);
  const int shards = shard_count(stage_, s), data = location_.index / s.tp;
  const int shard = data % shards, peer_shard = ((shard + distance) % shards + shards) % shards;
  Instruction message{.op = op, .lane = Lane::transfer, .chunk = chunk_of(block), .block = block};
  message.peer =
      stage_.devices[static_cast<std::size_t>((data - shard + peer_shard) * s.tp + location_.index % s.tp)];
  message.bytes = sizes_.part(block, StateKind::gradients).value / shards;
  return message;
}

// The other device completes its reduction at about the same time, so only the step gate waits for the
// receive.
void StepCompiler::send_copy_of(int block, int sum) {
  builder_.add(copy_message(Op::send_copy, block, plan_.copy_distance), {sum});
  copy_waits_.push_back(builder_.add(copy_message(Op::receive_copy, block, -plan_.copy_distance), {sum}));
  copy_buffers_[block] = -1;
  if (!has_buffers_) return;
  copy_buffers_[block] = builder_.add_buffer(BufferKind::copy_gradients, block, -1,
                                             sizes_.shard_buffer(block, StateKind::gradients));
  builder_.use(copy_buffers_[block], true);
}

// Called before the next reduction is added to the reduce lane. The next reduction waits for the preceding
// one in any case, so this reduction and the message with the preceding result both overlap with the backward
// pass of the blocks below.
void StepCompiler::send_pending_copies() {
  for (const int block : std::exchange(pending_copies_, {})) send_copy_of(block, last_reductions_.at(block));
}

// Sends the copies of all shards that have not been sent yet. The reduce lane is in order, so after its last
// entry all reductions are complete, including the reduction of a tied embedding.
void StepCompiler::send_all_copies() {
  send_pending_copies();
  for (const int block : own_blocks())
    if (has_shard_copies(plan_, strategy(block)) && !copy_buffers_.contains(block))
      send_copy_of(block, last_reduce_ >= 0 ? last_reduce_ : last_compute_);
}

void StepCompiler::update_blocks(const Dependencies& gate, int microbatch) {
  for (const int block : own_blocks()) {
    const LayerStrategy& s = strategy(block);
    Dependencies waits = gate;
    for (const int compute : last_computes()) waits.push_back(compute);
    if (const auto reduced = last_reductions_.find(block); reduced != last_reductions_.end())
      waits.push_back(reduced->second);
    Instruction update{
        .op = Op::optimizer, .lane = s.offload ? Lane::host : Lane::compute, .microbatch = microbatch};
    update.chunk = chunk_of(block), update.block = block;
    const int update_index = builder_.add(update, waits);
    if (const auto copy_buffer = copy_buffers_.find(block);
        copy_buffer != copy_buffers_.end() && has_buffers_) {
      builder_.use(copy_buffer->second, false);
      // The weights that the repeated update produces are not used. With ZeRO 1 and 2, they are written to
      // memory that the gather then overwrites with the same values. With ZeRO 3, they need a buffer.
      if (s.zero == 3 && bytes_of(plan_.precision) < 4)
        use_exchange(block, sizes_.shard_buffer(block, StateKind::weights));
    }
    const bool is_async = is_asynchronous(plan_.schedule);
    if (is_async) pending_updates_.push_back(update_index);
    if (s.zero == 0 || s.zero == 3) continue;
    const auto gather = [&](int group, Bytes bytes) {
      Instruction instruction{.op = Op::gather_parameters,
                              .lane = Lane::gather,
                              .microbatch = microbatch,
                              .chunk = chunk_of(block)};
      instruction.block = block, instruction.group = group, instruction.bytes = bytes.value;
      const int gather_index = builder_.add(instruction, {update_index});
      use_exchange(block, sizes_.exchange_buffer(block, StateKind::weights));
      if (is_async) pending_updates_.push_back(gather_index);
    };
    if (shard_count(stage_, s) > 1)
      gather(data_group(block, Role::gather), sizes_.part(block, StateKind::weights));
    if (has_experts(block) && expert_shard_count(stage_, s) > 1)
      gather(expert_data_group(block, Role::gather), sizes_.experts(block, StateKind::weights));
  }
}

void StepCompiler::finish_step() {
  send_pending_copies();
  sync_gradients();
  send_all_copies();
  Dependencies waits = copy_waits_;
  for (const int compute : last_computes()) waits.push_back(compute);
  update_blocks({step_gate(waits)}, -1);
}

int StepCompiler::step_gate(const Dependencies& waits) {
  Instruction gate{.op = Op::step_gate, .lane = Lane::reduce};
  gate.group = builder_.intern_group(Role::world, {});
  gate.bytes = 16;  // the sum of squares as a double, and the finite flag
  return builder_.add(gate, waits);
}

// Asynchronous schedules have already performed all updates, so only the loss and the norms of the step are
// summed.
void StepCompiler::report_step() {
  Dependencies waits = pending_updates_;
  for (const int compute : last_computes()) waits.push_back(compute);
  step_gate(waits);
}

}  // namespace optimus
