// Specimen: what a layer, the embedding and the head cost on one kind of device under one strategy: seconds in a slot, and bytes.
//
// A tiny model of the same width is compiled and priced as any plan is, so a specimen has no formulas of its own. Within a slot
// layers follow one another in the same way, so a slot of n layers takes base + n x layer; what a specimen leaves out (gradients
// on their way, gathered weights, neighbours) only adds to that. So sums of its figures are lower bounds (search/bound.h).
#pragma once

#include <memory>
#include <unordered_map>

#include "search/candidate.h"
#include "search/ground.h"

namespace optimus {

// What a slot of blocks takes, and what of it compute does.
struct SlotCost {
  double base = 0, layer = 0, embedding = 0, head = 0;
  double of(int layers, bool has_embedding, bool has_head) const {
    return base + layers * layer + (has_embedding ? embedding : 0) + (has_head ? head : 0);
  }
};

// Bytes of one block on a device, nothing sharded, one micro-batch.
struct BlockBytes {
  double weights = 0, gradients = 0, optimizer = 0, kept = 0, brief = 0, elements = 0;
};

struct Specimen {
  SlotCost forward, backward;                  // backward: with weight gradients
  SlotCost input, weight;                      // the two halves of a split backward
  SlotCost forward_compute, backward_compute;  // without communication
  // A slot may take so much longer than said here: gathers that are hidden behind the slot before, or not.
  double slack = 0;
  double before = 0;                                               // host work of stages that read the batch
  double boundary_bytes = 0;                                       // of one message between stages
  double update_layer = 0, update_embedding = 0, update_head = 0;  // optimizer, nothing sharded
  BlockBytes layer, embedding, head;
};

class Specimens {
 public:
  Specimens(const Demand& demand, const Ground& ground);
  // Axes that matter: tp, cp, sequence_parallel, microbatch, recompute.
  const Specimen& of(int kind, const Candidate& candidate);
  int num_made() const { return static_cast<int>(known_.size()); }

 private:
  std::unique_ptr<Specimen> make(int kind, const Candidate& candidate) const;

  const Demand& demand_;
  const Ground& ground_;
  ModelSpec small_;
  ModelWork work_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Specimen>> known_;
};

}  // namespace optimus
