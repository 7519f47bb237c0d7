// One instruction of a program in time, in seconds from a begin that the user of this says: as predicted (lanes.h), or as it was
// (engine/instruction_log.h).
#pragma once

namespace optimus {

struct InstructionTime {
  int instruction = 0;  // of the program
  double start = 0, end = 0;
};

}  // namespace optimus
