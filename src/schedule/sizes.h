// Bytes of what one device holds: weights and state of a block, activations that a block keeps.
#pragma once

#include <map>

#include "base/units.h"
#include "plan/layouts.h"
#include "plan/plan.h"
#include "schedule/share.h"
#include "schedule/slab.h"

namespace optimus {

// One device's view of a stage under the plan; caches what is the same for all blocks of a pattern.
class DeviceSizes {
 public:
  DeviceSizes(const Plan& plan, const ModelSpec& model, const Seat& seat);

  // State of one block on this device, shards padded to equal size.
  Bytes state(int block, StateKind kind) const;
  // The whole weights of the block's tensor-parallel part: what a gather makes, and what a reduction sums. Without experts,
  // which have groups of their own.
  Bytes part(int block, StateKind kind) const;
  Bytes experts(int block,
                StateKind kind) const;  // this device's part of a mixture's experts; 0 in other blocks
  // The flat buffer of the same in memory, where every tensor begins at a multiple of kAlignment, experts included; of a tied
  // head's weights with the embedding's. And the shards of all members, one behind the other, with a sum of gradients
  // behind them.
  Bytes whole_buffer(int block, StateKind kind) const;
  Bytes exchange_buffer(int block, StateKind kind) const;
  Bytes shard_buffer(int block, StateKind kind) const;  // one member's
  // Masters and moments of the shard whose updates this device repeats, as far as they are not here anyway; 0 without a buddy.
  Bytes buddy_state(int block) const;
  // Gradients that several tensor parts hold but each sees only partly, by the parts that hold them: norms under sequence
  // parallelism, key/value heads that several parts share.
  std::map<std::vector<int>, Bytes> partial(int block) const;
  // The part of a block's gradients that another stage of the pipeline holds too: a tied embedding.
  Bytes shared(int block) const;
  // Activations of one block and micro-batch: kept from the forward to the backward, and the others, which are there only
  // while the block is worked on (in the forward, and computed again in the backward).
  Slab kept(int block, int sequences) const;
  Slab passing(int block, int sequences) const;
  // Gradients of activations: until the weight gradients are done, and until the input gradient is.
  Slab gradients(int block, int sequences) const;
  Slab passing_gradients(int block, int sequences) const;
  // Logits of some tokens at a time, where the head computes its loss.
  Slab logits(int block, int sequences) const;
  // Custom blocks: what autograd keeps from the forward to the backward, and takes beside it while one of them runs.
  Bytes graph(int block, int sequences) const;
  Bytes graph_work(int block, int sequences) const;
  // `width` elements a token between blocks, on this device (its slice with sequence parallelism), and the whole of its group.
  Bytes boundary(int block, int sequences, std::int64_t width) const;
  Bytes whole_activation(int block, int sequences) const;
  // What the tensor parts received of it, each its slice of the features, padded to equal length.
  Bytes joined(int block, int sequences, std::int64_t width) const;
  // Keys and values of one context part, which go round the ring, and their gradients.
  Bytes ring(int block, int sequences) const;
  Bytes ring_gradients(int block, int sequences) const;
  // The tokens that go to experts from here: each as often as it has experts.
  Bytes dispatched(int block, int sequences) const;

 private:
  enum class Flat { whole, shard, exchange };
  Bytes laid_out(int block, StateKind kind, Flat how) const;
  void add_whole(SlabBuilder& slab, int block, std::int64_t tokens, bool is_kept) const;
  // Rows and columns of what goes round the ring; none without context parallelism.
  struct RingShape {
    std::int64_t rows = 0, columns = 0;
  };
  RingShape ring_shape(int block, int sequences) const;
  std::int64_t elements(int block, int shards, bool with_embedding) const;
  std::int64_t expert_elements(int block, int shards) const;
  int tensor_part(const LayerStrategy& strategy) const { return seat_.index % strategy.tp; }
  ActivationShare share(int block, int sequences, bool between_blocks) const;
  Slab activations(int block, int sequences, bool is_kept) const;
  Slab activation_gradients(int block, int sequences, bool is_for_weights) const;
  void add(SlabBuilder& slab, int block, std::int64_t tokens, const KeptTensor& tensor) const;

  const Plan& plan_;
  const ModelSpec& model_;
  Seat seat_;
  const Stage& stage_;
  std::vector<std::vector<LogicalTensor>> tensors_;  // [pattern]
  std::vector<std::vector<Operation>> operations_;
  bool has_one_copy_of_tied_embedding_;
};

// With full recompute, the number of layers computed again together that needs least memory: L / g kept inputs and everything
// of g layers are there at a time, so g = √(L x input / everything); a stage of L layers with one micro-batch under way.
int least_recompute_layers(const Plan& plan, const ModelSpec& model);

}  // namespace optimus
