// Compiles the step program of one device, one slot of its stage's order after another. One object compiles
// one program. compile.cpp has the overall order, step_compute.cpp the forward and backward pass of a block,
// step_reduce.cpp gradients and updates.
#pragma once

#include <map>
#include <tuple>

#include "schedule/builder.h"
#include "schedule/order.h"
#include "schedule/sizes.h"

namespace optimus {

class StepCompiler {
 public:
  // If `has_buffers` is false, activation buffers are omitted. They are not needed to compute how long the
  // program takes.
  StepCompiler(const Plan& plan, const ModelSpec& model, int device, bool has_buffers = true);
  Program compile();

 private:
  // compile.cpp: slots, boundaries between stages, parameter gathers.
  void stash_weights();
  void slot(const Slot& slot);
  void compile_slot(const Slot& slot);
  void forward(int microbatch, int chunk);
  void backward(int microbatch, int chunk, bool with_weights);
  void backward_weights_only(int microbatch, int chunk);
  struct Neighbour {
    const Stage* stage;
    int block;  // the neighbor's block that is adjacent to this stage
  };
  Neighbour previous_neighbour(int chunk) const;
  Neighbour next_neighbour(int chunk) const;
  // Data sent from a block of one stage to a block of another stage, or to a differently split block of the
  // same stage.
  struct Crossing {
    const Stage &from, &to;
    int from_block, to_block;
    Side from_side, to_side;
    std::int64_t width;  // elements per token
    bool is_inside() const { return &from == &to; }
  };
  // Moves an activation, or its gradient if `is_backward`, from block `from_block` of `from` to block
  // `to_block` of `to`. This device belongs to one of the two stages or to both. Returns the dependencies of
  // the receiving block.
  Dependencies add_crossing(const Stage& from, int from_block, const Stage& to, int to_block, int microbatch,
                            bool is_backward, const Dependencies& dependencies);
  // The result is cached, because chunks have few distinct crossings. The reference is valid until the next
  // call.
  const std::vector<Route>& routes(bool is_outgoing, const Side& from, const Side& to, int sequences,
                                   std::int64_t width);
  Dependencies send(const Crossing& crossing, int microbatch, bool is_backward, Dependencies dependencies);
  Dependencies receive(const Crossing& crossing, int microbatch, bool is_backward);
  Dependencies join_parts(const Crossing& crossing, int microbatch, bool is_backward, Dependencies receives);
  int outgoing(int block, int microbatch, bool is_backward);
  // Adds the buffers of received data to the uses of the last added instruction, which is a computation or
  // one of its collectives.
  void use_received(const Instruction& instruction);
  Dependencies gather_parameters(int block, Dependencies waits);
  // Whether the backward pass of a block reads the block's weights (for an embedding, only if it has a norm),
  // and whether the weights must be gathered for the backward pass.
  bool has_backward_weights(int block) const;
  bool needs_gather(int block, int microbatch, int chunk) const;

  // step_compute.cpp
  Dependencies forward_block(int microbatch, int block, Dependencies dependencies, Op op);
  Dependencies forward_attention(int microbatch, int block, const Dependencies& dependencies, Op op);
  Dependencies backward_block(int microbatch, int block, Dependencies dependencies, bool with_weights);
  Dependencies backward_attention_input(int microbatch, int block, const Dependencies& dependencies);
  Dependencies backward_half(Part part, int microbatch, int block, Dependencies dependencies,
                             bool with_weights);
  Dependencies forward_experts(int microbatch, int block, Dependencies dependencies, Op op);
  Dependencies backward_experts(int microbatch, int block, Dependencies dependencies, bool with_weights);
  Dependencies exchange_tokens(Op op, int microbatch, int block, bool is_backward, Dependencies dependencies);
  void backward_weight(Part part, int microbatch, int block, const Dependencies& dependencies);
  void backward_weights(int microbatch, int block);  // all parts, in a separate slot
  void finish_weight_gradients(int microbatch, int block);
  int compute(Op op, Part part, int microbatch, int block, const Dependencies& waits, int ring_step = -1);
  // The computation that a tensor collective belongs to.
  struct ServedCompute {
    Op op = Op::forward;  // op of the computation
    Part part = Part::whole;
    int microbatch = -1, block = -1;
    bool is_backward = false;  // whether the collective carries a gradient
  };
  int tensor_collective(Op op, const ServedCompute& served, Bytes bytes, const Dependencies& waits);
  int ring(Op op, int microbatch, int block, int ring_step, const Dependencies& waits);
  Dependencies gather_sequence(const ServedCompute& served, Dependencies dependencies);
  Dependencies reduce_partial(const ServedCompute& served, Dependencies dependencies);

  // step_reduce.cpp
  void reduce_gradients(int block, int microbatch, bool is_last);
  const std::map<std::vector<int>, Bytes>& partial(int block);
  void sync_gradients();
  void send_copy_of(int block, int sum);
  void send_pending_copies();
  void send_all_copies();
  Instruction copy_message(Op op, int block, int distance);
  void update_blocks(const Dependencies& gate, int microbatch);
  int step_gate(const Dependencies& waits);
  void finish_step();
  void report_step();

  const LayerStrategy& strategy(int block) const { return strategy_of(stage_, block); }
  BlockKind kind(int block) const { return block_kind(model_, block); }
  bool has_experts(int block) const { return is_mixture_block(model_, block); }
  int chunk_of(int block) const;
  int sequences(int microbatch) const { return pipeline_.microbatches[static_cast<std::size_t>(microbatch)]; }
  std::vector<int> own_blocks() const;
  int tensor_group(int block);
  int tensor_subgroup(int block, const std::vector<int>& parts);
  int context_group(int block);
  int data_group(int block, Role role);         // shard or replica
  int expert_group(int block);                  // devices over which the experts are distributed
  int expert_data_group(int block, Role role);  // shard or replica: devices that store the same experts
  using BlockMicrobatch = std::pair<int, int>;
  enum class ActivationBufferKind {
    saved,
    transient,
    gradients,
    transient_gradients,
    logits,
    graph,
    graph_work
  };
  Bytes activation_buffer_bytes(ActivationBufferKind kind, int block, int microbatch);
  // Adds the activation buffer of this block and micro-batch to the uses of the last added instruction.
  // Creates the buffer on first use.
  void use_activation_buffer(std::map<BlockMicrobatch, int>& activation_buffers, ActivationBufferKind kind,
                             int block, int microbatch, bool is_write);
  void use_activation_buffers(
      Instruction instruction);  // according to op and part of the last added instruction
  void use_whole_gradients(int block, int microbatch);
  bool reduces_every_microbatch(int block) const;
  void use_exchange(int block, Bytes bytes);
  Dependencies last_computes() const;  // the last computation and the last tensor collective
  void use_graph(const Instruction& instruction);
  // Whether the backward pass of the block starts with a recomputation of its forward pass. This is false for
  // the head, which computes the loss together with its gradient.
  bool is_recomputed(int block) const;
  Span recompute_group(int block) const { return optimus::recompute_group(model_, stage_, block); }
  // If a layer is recomputed together with the layer below it, its input is live only during the forward
  // pass.
  std::map<BlockMicrobatch, int>& saved_by_forward(int block) {
    return recompute_group(block).begin == block ? saved_ : forward_saved_;
  }
  // Recomputes all layers of the recompute group that ends with `block`.
  Dependencies recompute(int microbatch, int block, Dependencies dependencies);

  const Plan& plan_;
  const ModelSpec& model_;
  const PlanLocation location_;
  const Pipeline& pipeline_;
  const Stage& stage_;
  const int device_;
  const bool has_buffers_;
  DeviceSizes sizes_;
  ProgramBuilder builder_;
  int load_batch_ = -1;
  int last_compute_ = -1, last_tensor_ = -1, last_reduce_ = -1;
  // micro-batch and chunk of the preceding slot if it was a forward pass, otherwise -1
  std::pair<int, int> last_forward_{-1, -1};
  using CrossingKey = std::tuple<bool, int, int>;  // is gradient, block, micro-batch
  // buffers of received data that no computation has read yet
  std::map<CrossingKey, std::vector<int>> received_buffers_;
  std::map<CrossingKey, int> outgoing_;  // buffers of data to be sent
  bool needs_sync_ = false;              // whether gradients are also summed over other pipelines

  // Buffers by block and micro-batch. Transient activations of the forward pass and of the recomputation are
  // separate.
  std::map<BlockMicrobatch, int> saved_, forward_saved_, transient_, recomputed_, gradients_,
      transient_gradients_, logits_, backward_logits_, whole_gradients_;
  std::map<BlockMicrobatch, int> graph_, forward_graph_, graph_work_, backward_graph_work_;  // custom blocks
  // Dependencies of the embedding's weight gradient (received gradients) and of the head's backward pass
  // (sums over logits).
  std::map<BlockMicrobatch, Dependencies> backward_dependencies_;
  std::map<BlockMicrobatch, Dependencies> local_chunk_waits_;  // dependencies of the next local chunk
  std::map<bool, std::vector<int>> readers_;  // is gradient -> computations that read the received data
  // (is gradient, receiving stage) -> messages of each crossing
  std::map<std::pair<bool, const Stage*>, std::vector<Dependencies>> sent_messages_;
  std::map<int, int> gathered_weights_;  // ZeRO 3: block -> buffer of its gathered weights
  std::vector<int> recent_computes_;     // last computation of each recently processed block
  std::map<int, int>
      remaining_weight_gradients_;  // block -> micro-batches whose weight gradient is still to be computed
  struct KnownRoutes {
    bool is_outgoing = false;
    Side from, to;
    int sequences = 0;
    std::int64_t width = 0;
    std::vector<Route> routes;
  };
  std::vector<KnownRoutes> known_routes_;
  const LayerStrategy* tensor_group_of_ = nullptr;
  int last_tensor_group_ = -1;
  std::map<std::pair<int, const LayerStrategy*>, std::map<std::vector<int>, Bytes>>
      partial_;  // [pattern, strategy]
  // Blocks whose gradient shard is complete but not yet sent to the device that stores its copy.
  std::vector<int> pending_copies_;
  std::map<int, int> copy_buffers_;  // block -> buffer of the received gradient shard; -1 without buffers
  Dependencies copy_waits_;          // receives of the gradient shards whose updates this device repeats
  // asynchronous schedules: gathers of updated weights that the next slot waits for
  Dependencies pending_updates_;
  std::map<int, int> last_reductions_;  // block -> the instruction that completed its last reduction
  std::map<std::tuple<ActivationBufferKind, int, const LayerStrategy*, int>, Bytes> activation_buffer_sizes_;
};

}  // namespace optimus
