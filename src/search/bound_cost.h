// Costs of one stage and of one chunk, from which bounds are computed (search/bound.h). Plain data.
#pragma once

namespace optimus {

// Costs of the slots of one chunk.
struct ChunkCost {
  double forward = 0, backward = 0, weight = 0;  // weight: if weight gradients are a separate slot
  double interference = 0;                       // slowdown of the last backward by concurrent reductions
};

// Costs of one stage.
struct StageCost {
  double forward = 0, backward = 0, weight = 0;  // of one micro-batch, sum over all chunks
  double first_forward = 0, last_backward = 0;   // of the stage's first chunk
  double max_chunk_forward = 0;                  // largest forward of any chunk
  double interference = 0;
  double host_seconds_before = 0;                // host work before the first slot
  double message = 0;                            // transfer to the next stage
  double reduced = 0, gathered = 0, update = 0;  // of all blocks of the stage
  double scattered = 0;     // the part of `reduced` that is repeated after every micro-batch
  double last_reduced = 0;  // reduction of the block whose gradient is computed last
  double slack = 0;         // amount by which slots may take longer than recorded here, sum over all chunks
};

}  // namespace optimus
