// The cost of a layer, the embedding and the head on one kind of device under one strategy, in seconds per
// slot and in bytes.
//
// A small sample model of the same width is compiled and simulated like any plan, so the planner has no
// separate cost formulas. The time of a slot with n layers is base + n x layer. Costs that the sample omits
// (gradient reductions, gathered weights, messages from adjacent stages) only add time, so sums of these
// values are lower bounds (search/bound.h).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "search/candidate.h"
#include "search/cluster_view.h"

namespace optimus {

// The blocks of a slot or a stage. `dense` is the number of layers of the second kind, if the model has two
// kinds (layers without experts in a mixture-of-experts model).
struct BlockCounts {
  int layers = 0, dense = 0;
  bool has_embedding = false, has_head = false;
};

// Seconds taken by a slot as a function of its blocks.
struct SlotCost {
  double base = 0, layer = 0, embedding = 0, head = 0;
  double dense = 0;  // cost of a layer of the second kind minus that of the first; may be negative
  double of(const BlockCounts& block_counts) const {
    return base + block_counts.layers * layer + block_counts.dense * dense +
           (block_counts.has_embedding ? embedding : 0) + (block_counts.has_head ? head : 0);
  }
  // Cost of the less expensive kind of layer.
  double min_layer() const { return layer + std::min(0.0, dense); }
  double max_layer() const { return layer + std::max(0.0, dense); }
};

// Bytes of one block on a device for one micro-batch, without sharding. `elements` is the number of
// parameters of the block.
struct BlockBytes {
  double weights = 0, gradients = 0, optimizer = 0, saved_activations = 0, transient = 0, elements = 0;
  double experts = 0;  // the part of `elements` that belongs to experts
};

struct SampleCost {
  SlotCost forward, backward;   // backward includes weight gradients
  SlotCost input, weight;       // the two parts of a split backward pass
  double first_collective = 0;  // the longest collective that a slot may start with
  // The part of a forward pass that is hidden only if the preceding slot computes weight gradients.
  double hidden_by_weight_slot = 0;
  SlotCost forward_compute, backward_compute;  // without communication
  // The time by which a slot may exceed the recorded time, because the preceding slot may not hide the
  // gathers of this slot.
  double slack = 0;
  double host_seconds_before = 0;  // host work of stages that read the batch
  double boundary_bytes = 0;       // bytes per message between stages
  // Seconds taken by the optimizer update, without sharding.
  double update_layer = 0, update_embedding = 0, update_head = 0;
  double update_dense = 0;  // for a layer of the second kind
  BlockBytes layer, embedding, head;
  BlockBytes dense;  // equal to `layer` if the model has one kind of layers
  bool has_bytes = false;
};

class SampleCosts {
 public:
  SampleCosts(const Demand& demand, const ClusterView& cluster_view);
  // Returns the cost for a kind of device. It depends on the candidate's tp, cp, ep, sequence_parallel,
  // microbatch and recompute. Bytes are computed only if `with_bytes` is set.
  const SampleCost& of(int kind, const Candidate& candidate, bool with_bytes = true);
  int num_computed() const { return static_cast<int>(costs_.size()); }

 private:
  std::unique_ptr<SampleCost> compute_cost(int kind, const Candidate& candidate) const;
  void add_bytes(int kind, const Candidate& candidate, SampleCost& sample_cost) const;

  const Demand& demand_;
  const ClusterView& cluster_view_;
  ModelSpec sample_model_;
  ModelWork model_work_;
  // The first block of each chunk of the sample model, followed by the number of blocks.
  std::vector<int> chunk_starts_;
  std::map<std::tuple<int, int, int, int, int, int>, std::unique_ptr<SampleCost>> costs_;
};

}  // namespace optimus
