// See builder.h.
#include "schedule/builder.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {

int ProgramBuilder::add(Instruction instruction, const Dependencies& waits) {
  std::vector<Instruction>& list = program_.instructions;
  instruction.slot = slot_;
  instruction.waits_begin = static_cast<std::uint32_t>(program_.wait_pool.size());
  for (const int wait : waits) {
    ensure(wait >= 0 && wait < std::ssize(list),
           "instruction {} waits for instruction {}, which does not precede it", list.size(), wait);
    Instruction& dependency = list[static_cast<std::size_t>(wait)];
    if (dependency.lane == instruction.lane && instruction.lane != Lane::transfer) continue;
    const auto begin = program_.wait_pool.begin() + instruction.waits_begin;
    if (std::find(begin, program_.wait_pool.end(), wait) != program_.wait_pool.end()) continue;
    program_.wait_pool.push_back(wait);
    dependency.is_waited_for = true;
  }
  instruction.waits_end = static_cast<std::uint32_t>(program_.wait_pool.size());
  instruction.uses_begin = instruction.uses_end = static_cast<std::uint32_t>(program_.use_pool.size());
  list.push_back(instruction);
  return static_cast<int>(list.size()) - 1;
}

void ProgramBuilder::use(int buffer, bool is_write) {
  program_.use_pool.push_back({buffer, is_write});
  program_.instructions.back().uses_end = static_cast<std::uint32_t>(program_.use_pool.size());
}

int ProgramBuilder::intern_group(Role role, std::vector<int> members) {
  const auto [at, is_new] = groups_.try_emplace({role, members}, static_cast<int>(program_.groups.size()));
  if (is_new) program_.groups.push_back({role, std::move(members)});
  return at->second;
}

int ProgramBuilder::add_buffer(BufferKind kind, int block, int microbatch, Bytes bytes) {
  program_.buffers.push_back({kind, block, microbatch, bytes});
  return static_cast<int>(program_.buffers.size()) - 1;
}

}  // namespace optimus
