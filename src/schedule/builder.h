// The mechanics of writing a program: instructions with their waits, groups and buffers. What is written is decided in
// compile.cpp and its neighbours.
#pragma once

#include <map>
#include <vector>

#include "schedule/program.h"

namespace optimus {

// Instructions that something waits for.
using Frontier = std::vector<int>;

class ProgramBuilder {
 public:
  explicit ProgramBuilder(int device, const Seat& seat) { program_.device = device, program_.seat = seat; }

  // Appends the instruction; returns its index. Waits on the same in-order lane are implied and left out.
  int add(Instruction instruction, const Frontier& waits);
  void begin_slot(int slot) { slot_ = slot; }  // of the instructions added from here on; -1: none
  void use(int buffer, bool is_write);         // by the instruction added last

  int group(Role role, std::vector<int> members);
  int buffer(BufferKind kind, int block, int microbatch, Bytes bytes);

  const Program& program() const { return program_; }
  Program take() { return std::move(program_); }

 private:
  Program program_;
  int slot_ = -1;
  std::map<std::pair<Role, std::vector<int>>, int> groups_;
};

}  // namespace optimus
