// Specimen: what a layer, the embedding and the head cost on one kind of device under one strategy: seconds in a slot, and bytes.
//
// A tiny model of the same width is compiled and priced as any plan is, so a specimen has no formulas of its own. Within a slot
// layers follow one another in the same way, so a slot of n layers takes base + n x layer; what a specimen leaves out (gradients
// on their way, gathered weights, neighbours) only adds to that. So sums of its figures are lower bounds (search/bound.h).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "search/candidate.h"
#include "search/ground.h"

namespace optimus {

// Blocks of a slot or a stage. dense: those of the layers that are of the other kind, where a model has two (a mixture's layers
// without experts).
struct Held {
  int layers = 0, dense = 0;
  bool has_embedding = false, has_head = false;
};

// What a slot of blocks takes.
struct SlotCost {
  double base = 0, layer = 0, embedding = 0, head = 0;
  double dense = 0;  // of a layer of the other kind, beyond that of a layer: may be negative
  double of(const Held& held) const {
    return base + held.layers * layer + held.dense * dense + (held.has_embedding ? embedding : 0) +
           (held.has_head ? head : 0);
  }
  // Of any of the layers.
  double least_layer() const { return layer + std::min(0.0, dense); }
  double most_layer() const { return layer + std::max(0.0, dense); }
};

// Bytes of one block on a device, nothing sharded, one micro-batch.
struct BlockBytes {
  double weights = 0, gradients = 0, optimizer = 0, kept = 0, brief = 0, elements = 0;
  double experts = 0;  // of the elements
};

struct Specimen {
  SlotCost forward, backward;   // backward: with weight gradients
  SlotCost input, weight;       // the two halves of a split backward
  double first_collective = 0;  // the longest that a slot may begin with
  double hidden_by_weights =
      0;  // of a forward behind one that has weight gradients alone, beyond what is left out above
  SlotCost forward_compute, backward_compute;  // without communication
  // A slot may take so much longer than said here: gathers that are hidden behind the slot before, or not.
  double slack = 0;
  double before = 0;                                               // host work of stages that read the batch
  double boundary_bytes = 0;                                       // of one message between stages
  double update_layer = 0, update_embedding = 0, update_head = 0;  // optimizer, nothing sharded
  double update_dense = 0;                                         // of a layer of the other kind
  BlockBytes layer, embedding, head;
  BlockBytes dense;  // as layer where there is one kind
  bool has_bytes = false;
};

class Specimens {
 public:
  Specimens(const Demand& demand, const Ground& ground);
  // Axes that matter: tp, cp, ep, sequence_parallel, microbatch, recompute. Bytes are worked out when somebody asks for them.
  const Specimen& of(int kind, const Candidate& candidate, bool with_bytes = true);
  int num_made() const { return static_cast<int>(known_.size()); }

 private:
  std::unique_ptr<Specimen> make(int kind, const Candidate& candidate) const;
  void add_bytes(int kind, const Candidate& candidate, Specimen& specimen) const;

  const Demand& demand_;
  const Ground& ground_;
  ModelSpec small_;
  ModelWork work_;
  std::vector<int> firsts_;  // blocks at which the chunks of a specimen begin, and its number of blocks
  std::map<std::tuple<int, int, int, int, int, int>, std::unique_ptr<Specimen>> known_;
};

}  // namespace optimus
