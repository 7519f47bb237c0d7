// A step program: the list of instructions that one device executes in one training step.
//
// The engine executes it, the simulator times it, and the memory model counts its buffers. None of these
// three depends on schedules or strategies. Instructions of one lane run in list order. On the transfer lane,
// this order holds only among messages with the same peer, direction and kind. An instruction also waits for
// the instructions in `waits`, which always precede it in the list. A collective starts when all members of
// its group have reached it. The k-th send to a peer matches that peer's k-th receive of the same kind
// (activation, gradient, shard copy). Programs cannot deadlock under any timing (schedule/execute.h checks
// this).
//
// A single-threaded executor processes the list in order. It runs computations to completion, but it only
// starts collectives and messages. Before it starts an instruction, it completes the instructions in `waits`
// and the preceding instruction of the same lane. Therefore parameter gathers and receives are placed as
// early in the list as memory for their results is available. At most two messages are in flight in each
// direction.
//
// The engine and the cost model derive the work of an instruction from (op, part, block) and the plan.
// Messages also state their size.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "plan/plan.h"
#include "schedule/share.h"

namespace optimus {

// `compute` runs GEMMs and everything between them. `tensor` runs the collectives of tensor, context and
// expert parallelism. `gather` and `reduce` run collectives on parameters and gradients over data-parallel
// groups. `transfer` runs messages between two devices, and `host` runs CPU work.
enum class Lane : std::uint8_t { compute, tensor, gather, reduce, transfer, host };

enum class Op : std::uint8_t {
  load_batch,         // host: reads the token ids of this device for the whole step
  forward,            // compute
  recompute,          // compute: repeats a forward pass before the backward pass
  backward_input,     // compute: gradient of the input
  backward_weight,    // compute: gradient of the weights, added to the accumulator
  send,               // transfer: sends an activation or its gradient to another device
  receive,            // transfer
  all_gather,         // tensor: gathers the slices of an activation
  reduce_scatter,     // tensor: sums partial activations; each device retains its slice
  all_reduce,         // tensor: sums partial activations
  ring_exchange,      // tensor: sends keys and values one step around the context ring
  dispatch,           // tensor: sends tokens (or their gradients) to the devices of their experts
  combine,            // tensor: returns the outputs of the experts
  gather_parameters,  // gather: whole weights from shards (ZeRO 3: before use; ZeRO 1, 2: after the update)
  reduce_gradients,   // reduce: sums over a group; each device keeps its shard if the state is sharded
  // reduce: sums over the owners in other stages or pipelines (tied embeddings, uneven pipelines). Among
  // tensor-parallel ranks with equal copies, only the lowest one contributes and the others add zero. All of
  // them receive the sum.
  sync_gradients,
  send_copy,     // transfer: the reduced gradient shard, to the device that repeats its update
  receive_copy,  // transfer
  // reduce: sums the gradient norm and checks for non-finite gradients over all devices. With asynchronous
  // schedules, it sums loss and norms after all updates.
  step_gate,
  optimizer,  // compute, or host if offloaded: updates the shard of one block
};

// The part of a block that an instruction computes. Layers have two parts, attention and mlp, so that
// tensor-parallel collectives can run between them. With a context ring, attention is split into its input,
// one ring step per context part, and its output. Instead of the mlp, an MoE layer has the router (with norm,
// shared expert and the final sum) and the experts. Tokens are exchanged between these two parts.
enum class Part : std::uint8_t {
  whole,
  attention,
  mlp,
  attention_input,
  attention_ring_step,
  attention_output,
  router,
  experts
};

// The purpose of a group. A `shard` group sums gradients, and each member keeps its shard. A `gather` group
// has the same members, for collectives on the gather lane.
enum class Role : std::uint8_t { tensor, context, shard, gather, replica, sync, world, expert };

// Devices that run collectives together, in the order of their ranks in the group. An empty list in a `world`
// group stands for all devices of the plan.
struct Group {
  Role role = Role::world;
  std::vector<int> members;
  bool operator==(const Group&) const = default;
};

// The purpose of a buffer. The memory model sums buffers by purpose.
enum class BufferKind : std::uint8_t {
  weights,
  gathered_weights,
  stashed_weights,
  gradients,
  optimizer_state,
  copy_state,
  saved_activations,      // live from a block's forward pass to its backward pass
  transient_activations,  // live during a forward pass, or from recomputation to weight gradient
  // Gradients of activations, live from the input gradient of the block above until the weight gradient of
  // this block.
  saved_gradients,
  transient_gradients,  // gradients of activations, live while the input gradient is computed
  logits,               // live while the loss is computed
  // Custom blocks: memory that autograd saves until the backward pass. Autograd itself allocates the memory
  // for `graph` and `graph_work`.
  graph,
  graph_work,       // custom blocks: additional memory that autograd needs during a pass
  whole_gradients,  // whole gradients of weights before they are reduced to shards
  copy_gradients,   // reduced gradients of the shard whose update this device repeats
  exchange,         // concatenated shards of all members: output of an all-gather, input of a reduce-scatter
  // Output of a block, or gradient of its input, if the adjacent block is on another stage or split
  // differently.
  outgoing,
  message,  // the part of `outgoing` that one device sends to another; on the sender and the receiver
  joined,   // concatenated slices received by the tensor-parallel ranks of a group
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
  bool is_backward = false;  // whether a message or collective carries a gradient
  // For tensor collectives: the op of the computation that the collective belongs to (forward, recompute,
  // backward_input, or backward_weight for the gather of its operands), or `receive` if it gathers data from
  // another stage.
  Op serves = Op::forward;
  int microbatch = -1, chunk = -1, block = -1, ring_step = -1;
  // Index into the stage's order (schedule/order.h); -1 before the first and after the last slot.
  int slot = -1;
  int group = -1;          // collectives: index into Program::groups
  int peer = -1;           // messages: the other device
  std::int64_t bytes = 0;  // size of the message, or of the collective's whole tensor on one device
  std::uint32_t waits_begin = 0, waits_end = 0;  // into Program::wait_pool
  std::uint32_t uses_begin = 0, uses_end = 0;    // into Program::use_pool
  // whether an instruction on another lane waits for this instruction, so completion must be signalled
  bool is_waited_for = false;
};

// Access of an instruction to a buffer. A buffer is live from the first to the last instruction that uses it.
// A buffer without uses is live during the whole step.
struct Use {
  int buffer = 0;
  bool is_write = false;
};

struct Program {
  int device = 0;
  PlanLocation location;
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

// Compiles the program of one device. The plan must be valid for the model. Takes time proportional to the
// program's instructions and the plan's devices.
Program compile(const Plan& plan, const ModelSpec& model, int device);
// Compiles the program without activation buffers, which is enough to compute how long the program takes.
Program compile_without_buffers(const Plan& plan, const ModelSpec& model, int device);
// Compiles the programs of all devices, in the order of pipelines, stages and devices.
std::vector<Program> compile_all(const Plan& plan, const ModelSpec& model);

// The peak size of the buffers of each category when instructions run in list order.
struct MemoryUse {
  Bytes weights, gradients, optimizer, activations, buffers;
  Bytes peak;  // peak of all categories together; at most the sum of their peaks
};
MemoryUse memory_use(const Program& program);
// The offset of each buffer in one contiguous allocation. The offset is -1 for buffers that outlive a step
// (weights, gradients, optimizer state) and for memory that autograd allocates. Buffers whose lifetimes
// overlap when instructions run in list order do not share memory.
struct Arena {
  std::vector<std::int64_t> offsets;  // [buffer]
  Bytes bytes;
  Bytes autograd_peak;  // peak memory of autograd
};
Arena plan_arena(const Program& program);

// The largest number of (micro-batch, chunk) pairs whose activations are saved at the same time.
int max_saved_microbatches(const Program& program);

std::string text(Op op);
std::string text(Lane lane);
std::string text(Part part);
std::string text(const Program& program);  // one line per instruction

}  // namespace optimus
