// See instruction_name.h.
#include "simulate/instruction_name.h"

#include <fmt/format.h>

namespace optimus {
namespace {

std::string operation_text(const Instruction& instruction) {
  return text(instruction.op) +
         (instruction.is_backward && instruction.lane != Lane::compute ? " gradient" : "");
}

std::string part_text(const Instruction& instruction) {
  return instruction.part == Part::whole ? "" : " " + text(instruction.part);
}

}  // namespace

std::string instruction_name(const Instruction& instruction, const ModelSpec& model, int microbatch) {
  std::string name = operation_text(instruction);
  if (instruction.block >= 0) {
    const BlockKind kind = block_kind(model, instruction.block);
    name += kind == BlockKind::layer    ? fmt::format(" layer {}", instruction.block - 1)
            : kind == BlockKind::custom ? fmt::format(" block {}", instruction.block)
                                        : " " + text(kind);
  }
  name += part_text(instruction);
  if (instruction.ring_step >= 0) name += fmt::format(" {}", instruction.ring_step);
  if (microbatch >= 0) name += fmt::format(", micro-batch {}", microbatch);
  return name;
}

std::string instruction_kind(const Instruction& instruction, const ModelSpec& model) {
  // Messages have the same name for all blocks.
  if (instruction.lane == Lane::transfer) return operation_text(instruction);
  return operation_text(instruction) +
         (instruction.block < 0 ? "" : " " + text(block_kind(model, instruction.block))) +
         part_text(instruction);
}

}  // namespace optimus
