// Names of instructions. Predicted and measured instructions have the same names.
#pragma once

#include <string>

#include "schedule/program.h"

namespace optimus {

// "backward_weight layer 3 mlp, micro-batch 7"
std::string instruction_name(const Instruction& instruction, const ModelSpec& model, int microbatch);
// A name shared by all instructions with the same work, regardless of layer and micro-batch: "backward_weight
// layer mlp", "send".
std::string instruction_kind(const Instruction& instruction, const ModelSpec& model);

}  // namespace optimus
