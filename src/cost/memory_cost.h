// Computes the peak memory of one device in a stage, by purpose, for a given software. For the Optimus
// engine, it follows from the buffers of the step program (schedule/program.h, schedule/sizes.h). For other
// software, it follows from the known allocations of that software.
#pragma once

#include "cost/instruction_cost.h"

namespace optimus {

struct StageMemory {
  Bytes weights, gradients, optimizer, activations, buffers;
  Bytes total;  // peak of all live tensors
};

StageMemory stage_memory(const Setup& setup, int pipeline, int stage, const Constants& constants);

// The kind of memory that a measurement reports: live tensors, memory reserved by the allocator, or memory of
// the whole process. measured_as() returns the number of bytes that a measurement of this kind would report.
enum class MemoryKind { allocated, reserved, process };
Bytes measured_as(MemoryKind kind, const StageMemory& memory, int num_groups, const Constants& constants);

}  // namespace optimus
