// See instruction_name.h.
#include "simulate/instruction_name.h"

#include <fmt/format.h>

namespace optimus {
namespace {

std::string work_of(const Instruction& instruction) {
  return text(instruction.op) +
         (instruction.is_backward && instruction.lane != Lane::compute ? " gradient" : "");
}

std::string part_of(const Instruction& instruction) {
  return instruction.part == Part::whole ? "" : " " + text(instruction.part);
}

}  // namespace

std::string instruction_name(const Instruction& instruction, const ModelSpec& model, int microbatch) {
  std::string name = work_of(instruction);
  if (instruction.block >= 0) {
    const BlockKind kind = block_kind(model, instruction.block);
    name += kind == BlockKind::layer    ? fmt::format(" layer {}", instruction.block - 1)
            : kind == BlockKind::custom ? fmt::format(" block {}", instruction.block)
                                        : " " + text(kind);
  }
  name += part_of(instruction);
  if (instruction.ring_step >= 0) name += fmt::format(" {}", instruction.ring_step);
  if (microbatch >= 0) name += fmt::format(", micro-batch {}", microbatch);
  return name;
}

std::string instruction_kind(const Instruction& instruction, const ModelSpec& model) {
  // messages have one name for all blocks
  if (instruction.lane == Lane::transfer) return work_of(instruction);
  return work_of(instruction) +
         (instruction.block < 0 ? "" : " " + text(block_kind(model, instruction.block))) +
         part_of(instruction);
}

}  // namespace optimus
