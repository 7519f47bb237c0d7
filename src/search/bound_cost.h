// What a bound is made of: seconds of one stage and of one chunk. Used by Bounder alone (bound.cpp, bound_stage.cpp).
#pragma once

#include "search/bound.h"

namespace optimus {

// One chunk's slots.
struct Bounder::ChunkCost {
  double forward = 0, backward = 0, weight = 0;  // weight: where it is split off
  double interference = 0;                       // of reductions with the last backward
};

// One stage's figures.
struct Bounder::StageCost {
  double forward = 0, backward = 0, weight = 0;  // of a micro-batch, all chunks
  double first_forward = 0, last_backward = 0;   // of the chunk that a micro-batch meets first
  double longest_forward = 0;                    // of a chunk
  double interference = 0;
  double before = 0;                             // host
  double message = 0;                            // to the next stage
  double reduced = 0, gathered = 0, update = 0;  // of all its blocks
  double scattered = 0;                          // of that, after every micro-batch
  double last_reduced = 0;                       // of the block whose gradient comes last
  double slack = 0;                              // slots may take longer than here, all chunks together
};

}  // namespace optimus
