// See instruction_name.h.
#include "simulate/instruction_name.h"

#include <fmt/format.h>

namespace optimus {
namespace {

std::string work_of(const Instruction& at) {
  return text(at.op) + (at.is_backward && at.lane != Lane::compute ? " gradient" : "");
}

std::string part_of(const Instruction& at) { return at.part == Part::whole ? "" : " " + text(at.part); }

}  // namespace

std::string instruction_name(const Instruction& at, const ModelSpec& model, int microbatch) {
  std::string name = work_of(at);
  if (at.block >= 0) {
    const BlockKind kind = block_kind(model, at.block);
    name += kind == BlockKind::layer    ? fmt::format(" layer {}", at.block - 1)
            : kind == BlockKind::custom ? fmt::format(" block {}", at.block)
                                        : " " + text(kind);
  }
  name += part_of(at);
  if (at.ring_step >= 0) name += fmt::format(" {}", at.ring_step);
  if (microbatch >= 0) name += fmt::format(", micro-batch {}", microbatch);
  return name;
}

std::string instruction_kind(const Instruction& at, const ModelSpec& model) {
  if (at.lane == Lane::transfer) return work_of(at);  // independent of the block
  return work_of(at) + (at.block < 0 ? "" : " " + text(block_kind(model, at.block))) + part_of(at);
}

}  // namespace optimus
