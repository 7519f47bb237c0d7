// Names of instructions, which are the same for predicted and measured ones.
#pragma once

#include <string>

#include "schedule/program.h"

namespace optimus {

// "backward_weight layer 3 mlp, micro-batch 7"
std::string instruction_name(const Instruction& instruction, const ModelSpec& model, int microbatch);
// A name that instructions with the same work share, regardless of layer and micro-batch: "backward_weight
// layer mlp", "send".
std::string instruction_kind(const Instruction& instruction, const ModelSpec& model);

}  // namespace optimus
