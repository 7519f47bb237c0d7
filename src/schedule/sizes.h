// Sizes in bytes of the data on one device: weights and state of a block, and its saved activations.
#pragma once

#include <map>

#include "base/units.h"
#include "plan/layouts.h"
#include "plan/plan.h"
#include "schedule/activation_buffer.h"
#include "schedule/share.h"

namespace optimus {

// The sizes for one device of the plan. Caches values that are the same for all blocks with the same pattern.
class DeviceSizes {
 public:
  DeviceSizes(const Plan& plan, const ModelSpec& model, const PlanLocation& location);

  // The state of one block on this device, with shards padded to equal size.
  Bytes state(int block, StateKind kind) const;
  // All weights or gradients of the block on one tensor-parallel rank: the output of a gather of weights, or
  // the input of a reduction of gradients. Excludes experts, which have separate groups.
  Bytes part(int block, StateKind kind) const;
  // The experts of an MoE layer that this device stores; 0 for other blocks.
  Bytes experts(int block, StateKind kind) const;
  // Sizes of the flat buffers that contain these data in memory, where every tensor starts at a multiple of
  // kAlignment. They include experts and, for the weights of a tied head, the embedding. exchange_buffer()
  // holds the concatenated shards of all members and, for gradients, space for their sum.
  Bytes whole_buffer(int block, StateKind kind) const;
  Bytes exchange_buffer(int block, StateKind kind) const;
  Bytes shard_buffer(int block, StateKind kind) const;  // buffer of one member's shard
  // Master weights and moments of the shard whose updates this device repeats, except those that it already
  // stores. 0 without shard copies.
  Bytes copy_state(int block) const;
  // Bytes of the gradients that several tensor-parallel ranks store but each of them computes only partially,
  // keyed by the list of these ranks. Examples are norms under sequence parallelism, and key/value heads that
  // several ranks share.
  std::map<std::vector<int>, Bytes> partial_gradients(int block) const;
  // Bytes of a block's gradients that another stage of the pipeline also stores, as for a tied embedding.
  Bytes shared_gradients(int block) const;
  // Activations of one block and micro-batch. Those of saved() are live from the forward pass to the backward
  // pass. Those of transient() are live only while the block is processed, in the forward pass and when it is
  // recomputed for the backward pass.
  ActivationBuffer saved(int block, int sequences) const;
  ActivationBuffer transient(int block, int sequences) const;
  // Gradients of activations. Those of gradients() are live until the weight gradients are computed, and
  // those of transient_gradients() until the input gradient is computed.
  ActivationBuffer gradients(int block, int sequences) const;
  ActivationBuffer transient_gradients(int block, int sequences) const;
  // Logits of one slice of tokens. The head computes its loss slice by slice.
  ActivationBuffer logits(int block, int sequences) const;
  // For custom blocks: memory that autograd saves from the forward to the backward pass, and additional
  // memory that it needs during a pass.
  Bytes graph(int block, int sequences) const;
  Bytes graph_work(int block, int sequences) const;
  // boundary() is the size of activations between blocks on this device, with `width` elements per token.
  // With sequence parallelism, it covers only the device's slice. whole_activation() covers the tokens of the
  // whole tensor-parallel group.
  Bytes boundary(int block, int sequences, std::int64_t width) const;
  Bytes whole_activation(int block, int sequences) const;
  // The slices that the tensor-parallel ranks have received, concatenated along the feature dimension and
  // padded to equal size.
  Bytes joined_activation(int block, int sequences, std::int64_t width) const;
  // Keys and values of one context-parallel rank, which are sent around the ring. ring_gradients() is the
  // size of their gradients.
  Bytes ring(int block, int sequences) const;
  Bytes ring_gradients(int block, int sequences) const;
  // The tokens that this device sends to experts. A token counts once for each of its experts.
  Bytes dispatched_tokens(int block, int sequences) const;

 private:
  enum class BufferLayout { whole, shard, exchange };
  Bytes aligned_size(int block, StateKind kind, BufferLayout buffer_layout) const;
  void add_whole(ActivationBufferBuilder& activation_buffer, int block, std::int64_t tokens,
                 bool is_saved) const;
  // Rows and columns of the tensor that is sent around the ring; 0 without context parallelism.
  struct RingShape {
    std::int64_t rows = 0, columns = 0;
  };
  RingShape ring_shape(int block, int sequences) const;
  std::int64_t elements(int block, int shards, bool with_embedding) const;
  std::int64_t expert_elements(int block, int shards) const;
  int tensor_part(const LayerStrategy& strategy) const { return location_.index % strategy.tp; }
  ActivationShare share(int block, int sequences, bool between_blocks) const;
  ActivationBuffer activations(int block, int sequences, bool is_saved) const;
  ActivationBuffer activation_gradients(int block, int sequences, bool is_for_weights) const;
  void add(ActivationBufferBuilder& activation_buffer, int block, std::int64_t tokens,
           const SavedTensor& tensor) const;

  const Plan& plan_;
  const ModelSpec& model_;
  PlanLocation location_;
  const Stage& stage_;
  std::vector<std::vector<LogicalTensor>> tensors_;  // [pattern]
  std::vector<std::vector<Operation>> operations_;
  bool has_shared_tied_embedding_;
};

// With full recompute, the number of layers per recompute group that needs the least memory. In a stage of L
// layers with one micro-batch in flight, the saved inputs of L / g groups and all activations of the g layers
// of one group are live at the same time. Their total is minimal for g = √(L x input / all activations of a
// layer).
int best_recompute_group_size(const Plan& plan, const ModelSpec& model);

}  // namespace optimus
