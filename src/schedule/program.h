// A step program: what one device does in one training step, as a list of instructions.
//
// The engine executes it, the simulator times it, the memory model counts its buffers; none of them knows schedules or
// strategies. Instructions of one lane run in the order of the list; those of the transfer lane only with respect to
// the same peer, direction and kind. An instruction also waits for those it names (`waits`), which always stand before it.
// A collective starts when all members of its group have reached it; the k-th send to a peer meets that peer's k-th
// receive of the same kind (activation, gradient, buddy). Every program is built so that no timing can make them wait in a circle (schedule/execute.h checks).
//
// Whoever runs a program on one thread goes through the list in order: it computes, and starts collectives and messages
// without waiting for their end; before an instruction it ends those that it waits for and the one before it on its lane.
// Gathers of parameters and receives stand early in the list for that reason, where there is room for what they bring; of
// messages on their way there are two in each direction at most.
//
// What the engine does inside an instruction and what the cost model charges follow from (op, part, block) and the
// plan; messages carry their bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "plan/plan.h"
#include "schedule/share.h"

namespace optimus {

// compute: products and everything between; tensor: collectives of tensor, context and expert parallelism; gather and reduce:
// parameters and gradients over data-parallel groups; transfer: between single devices; host: the processor.
enum class Lane : std::uint8_t { compute, tensor, gather, reduce, transfer, host };

enum class Op : std::uint8_t {
  load_batch,       // host: this device's token ids of the whole step
  forward,          // compute
  recompute,        // compute: a forward again, for the backward
  backward_input,   // compute: gradient of the input
  backward_weight,  // compute: gradient of the weights, added to the accumulator
  send,             // transfer: activations or their gradients to another device
  receive,          // transfer
  all_gather,       // tensor: slices of an activation to the whole
  reduce_scatter,   // tensor: sum of partial activations, each keeps its slice
  all_reduce,       // tensor: sum of partial activations
  ring_exchange,    // tensor: keys and values one step round the context ring
  dispatch,         // tensor: tokens (or their gradients) to the devices that hold their experts
  combine,          // tensor: what the experts made of them, back
  gather_parameters,  // gather: shards to whole weights (before use with ZeRO 3, after the update with ZeRO 1 and 2)
  reduce_gradients,  // reduce: sum over the devices of a group, each keeps its shard where the state is sharded
  // reduce: sum over owners in other stages or pipelines (tied embeddings, uneven pipelines). Of tensor parts that hold
  // equal copies the lowest contributes, the others add nothing; all receive the sum.
  sync_gradients,
  send_buddy,     // transfer: the reduced gradient shard to the device that repeats its update
  receive_buddy,  // transfer
  step_gate,  // reduce: gradient norm and finiteness over all devices; asynchronous: loss and norms, behind all updates
  optimizer,  // compute, or host when offloaded: the update of one block's shard
};

// Which part of a block. Layers have two, so that tensor-parallel collectives stand between; with a context ring
// attention falls into its input, one hop per ring position, and its output. A mixture of experts has in place of the mlp the
// router (with norm, shared expert and sum) and the experts, between which tokens travel.
enum class Part : std::uint8_t {
  whole,
  attention,
  mlp,
  attention_input,
  attention_hop,
  attention_output,
  router,
  experts
};

// shard: sums of gradients, each member keeps its shard; gather: the same members, on their own lane.
enum class Role : std::uint8_t { tensor, context, shard, gather, replica, sync, world, expert };

// Devices that act together, in rank order of the group. world lists none: it is everybody in the plan.
struct Group {
  Role role = Role::world;
  std::vector<int> members;
  bool operator==(const Group&) const = default;
};

// What a buffer is for; the memory model adds them up by cause.
enum class BufferKind : std::uint8_t {
  weights,
  gathered_weights,
  stashed_weights,
  gradients,
  optimizer_state,
  buddy_state,
  kept_activations,     // from a block's forward to its backward
  passing_activations,  // while a block's forward runs, or from computing them again to the weight gradient
  kept_gradients,     // of activations: from the block above's input gradient to the block's weight gradient
  passing_gradients,  // of activations: while the block's input gradient is computed
  logits,             // while the loss is computed
  graph,  // custom blocks: what autograd keeps until the backward. It takes this memory itself, as it does the next
  graph_work,       // custom blocks: what autograd takes beside that in a forward or backward
  whole_gradients,  // of weights, before they are cut into shards
  buddy_gradients,  // reduced, of the shard whose update this device repeats
  exchange,  // shards of all members, one behind the other, on their way to whole weights or from whole gradients
  leaving,  // a block's output, or the gradient of its input, whose next block is elsewhere or split differently
  message,  // what one device sends another of it, or receives
  joined,   // what the tensor parts of a group received, one behind the other
};

struct Buffer {
  BufferKind kind = BufferKind::weights;
  int block = -1, microbatch = -1;
  Bytes bytes;
};

struct Instruction {
  Op op = Op::forward;
  Lane lane = Lane::compute;
  Part part = Part::whole;
  bool is_backward = false;  // messages and collectives: of a gradient
  // Tensor collectives: the compute they belong to: forward, recompute, backward_input, backward_weight (its operands); of what
  // came from another stage, receive.
  Op serves = Op::forward;
  int microbatch = -1, chunk = -1, block = -1, hop = -1;
  int slot = -1;   // index into the stage's order (schedule/order.h); -1: before the first or behind the last
  int group = -1;  // collectives: index into Program::groups
  int peer = -1;   // messages: the other device
  std::int64_t bytes = 0;  // of the message, or of the collective's whole tensor on one device
  std::uint32_t waits_begin = 0, waits_end = 0;  // into Program::wait_pool
  std::uint32_t uses_begin = 0, uses_end = 0;    // into Program::use_pool
  bool is_waited_for = false;                    // from another lane: it signals when done
};

// An instruction touches a buffer; it is live from its first use to its last. Buffers without uses live all step long.
struct Use {
  int buffer = 0;
  bool is_write = false;
};

struct Program {
  int device = 0;
  Seat seat;
  std::vector<Instruction> instructions;
  std::vector<Group> groups;
  std::vector<Buffer> buffers;
  std::vector<int> wait_pool;
  std::vector<Use> use_pool;

  std::span<const int> waits(const Instruction& i) const {
    return std::span(wait_pool).subspan(i.waits_begin, i.waits_end - i.waits_begin);
  }
  std::span<const Use> uses(const Instruction& i) const {
    return std::span(use_pool).subspan(i.uses_begin, i.uses_end - i.uses_begin);
  }
};

// The program of one device. The plan must be valid for the model. O(own instructions + devices of the plan).
Program compile(const Plan& plan, const ModelSpec& model, int device);
// The same without the buffers of activations: for whoever only wants to know how long it takes.
Program compile_without_buffers(const Plan& plan, const ModelSpec& model, int device);
// Those of all devices, in the order of pipelines, stages and devices.
std::vector<Program> compile_all(const Plan& plan, const ModelSpec& model);

// The most bytes that the buffers of each kind hold at one time, when instructions run in the order of the list.
struct MemoryUse {
  Bytes weights, gradients, optimizer, activations, buffers;
  Bytes peak;  // of all together; at most their sum
};
MemoryUse memory_use(const Program& program);
// Where each buffer lies in one piece of memory; -1 for those that live longer than a step (weights, gradients, optimizer
// state) and those of autograd. Buffers whose lives overlap, when instructions run in the order of the list, do not share memory.
struct Arena {
  std::vector<std::int64_t> offsets;  // [buffer]
  Bytes bytes;
  Bytes outside;  // the most that autograd holds at one time
};
Arena plan_arena(const Program& program);

// The most micro-batch chunks that keep activations at one time.
int most_kept(const Program& program);

std::string text(Op op);
std::string text(Lane lane);
std::string text(Part part);
std::string text(const Program& program);  // one line an instruction

}  // namespace optimus
