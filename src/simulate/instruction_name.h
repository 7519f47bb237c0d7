// Instructions by name, the same for what is predicted and what was measured.
#pragma once

#include <string>

#include "schedule/program.h"

namespace optimus {

// "backward_weight layer 3 mlp, micro-batch 7"
std::string instruction_name(const Instruction& instruction, const ModelSpec& model, int microbatch);
// Those that do the same, whichever layer and micro-batch it is for: "backward_weight layer mlp", "send".
std::string instruction_kind(const Instruction& instruction, const ModelSpec& model);

}  // namespace optimus
