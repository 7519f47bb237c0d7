// Bytes that one device of a stage holds at its fullest, by cause, under a software's habits. For our own engine they are the
// buffers of its program (schedule/program.h, schedule/sizes.h); for others what is known of their allocations.
#pragma once

#include "cost/instruction_cost.h"

namespace optimus {

struct StageMemory {
  Bytes weights, gradients, optimizer, activations, buffers;
  Bytes total;  // live tensors together
};

StageMemory stage_memory(const Setup& setup, int pipeline, int stage, const Constants& constants);

// What a measurement of that kind would show.
enum class MemoryKind { allocated, reserved, process };
Bytes shown_as(MemoryKind kind, const StageMemory& memory, int num_groups, const Constants& constants);

}  // namespace optimus
