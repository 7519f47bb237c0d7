// Builds a program: appends instructions with their waits, groups and buffers. StepCompiler
// (schedule/step_compiler.h) decides which instructions to add.
#pragma once

#include <map>
#include <vector>

#include "schedule/program.h"

namespace optimus {

// Indices of the instructions that an instruction waits for.
using Dependencies = std::vector<int>;

class ProgramBuilder {
 public:
  explicit ProgramBuilder(int device, const PlanLocation& location) {
    program_.device = device, program_.location = location;
  }

  // Appends the instruction and returns its index. Omits waits for instructions on the same in-order lane,
  // because the order implies them.
  int add(Instruction instruction, const Dependencies& waits);
  void begin_slot(int slot) { slot_ = slot; }  // sets the slot of the instructions that follow; -1 for none
  void use(int buffer, bool is_write);         // records an access by the last added instruction

  int intern_group(Role role, std::vector<int> members);
  int add_buffer(BufferKind kind, int block, int microbatch, Bytes bytes);

  const Program& program() const { return program_; }
  Program take() { return std::move(program_); }

 private:
  Program program_;
  int slot_ = -1;
  std::map<std::pair<Role, std::vector<int>>, int> groups_;
};

}  // namespace optimus
