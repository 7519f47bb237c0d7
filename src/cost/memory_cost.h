// Peak memory of one device of a stage, by purpose, for a given software. For the Optimus engine it follows
// from the buffers of its program (schedule/program.h, schedule/sizes.h); for other software, from what is
// known of their allocations.
#pragma once

#include "cost/instruction_cost.h"

namespace optimus {

struct StageMemory {
  Bytes weights, gradients, optimizer, activations, buffers;
  Bytes total;  // all live tensors together
};

StageMemory stage_memory(const Setup& setup, int pipeline, int stage, const Constants& constants);

// What a measurement of this kind would show.
enum class MemoryKind { allocated, reserved, process };
Bytes measured_as(MemoryKind kind, const StageMemory& memory, int num_groups, const Constants& constants);

}  // namespace optimus
