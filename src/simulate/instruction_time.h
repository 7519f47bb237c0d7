// Start and end of one instruction, in seconds from an origin that the caller defines. The times are either
// predicted (lanes.h) or measured (engine/instruction_log.h).
#pragma once

namespace optimus {

struct InstructionTime {
  int instruction = 0;  // index in the program
  double start = 0, end = 0;
};

}  // namespace optimus
