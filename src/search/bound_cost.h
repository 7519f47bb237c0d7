// Costs of one stage and of one chunk, from which bounds are computed (search/bound.h). Plain data.
#pragma once

namespace optimus {

// Costs of the slots of one chunk, in seconds per micro-batch.
struct ChunkCost {
  double forward = 0, backward = 0, weight = 0;  // weight: only for separate weight-gradient slots
  double interference = 0;                       // slowdown of the last backward pass by reductions
};

// Costs of one stage, in seconds.
struct StageCost {
  double forward = 0, backward = 0, weight = 0;  // per micro-batch, summed over all chunks
  double first_forward = 0, last_backward = 0;   // passes of the stage's first chunk
  double max_chunk_forward = 0;                  // longest forward pass of any chunk
  double interference = 0;
  double host_seconds_before = 0;  // host work before the first slot
  double message = 0;              // message to the next stage
  // Gradient reductions, weight gathers and updates, summed over all blocks of the stage.
  double reduction = 0, gather = 0, update = 0;
  double repeated_reduction = 0;  // part of `reduction` that is repeated after every micro-batch
  double last_reduction = 0;      // reduction of the block whose gradient is complete last
  double slack = 0;               // how much longer the slots may take, summed over all chunks
};

}  // namespace optimus
