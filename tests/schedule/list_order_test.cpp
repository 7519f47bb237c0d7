// An executor that runs each program on one thread in list order (program.h) terminates. It starts
// instructions other than computes without waiting, and completes each before an instruction that waits for
// it, before the next instruction on its lane, or at the end. A message or collective completes when all its
// partners have started it: nothing is sent in advance.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <tuple>

#include "layout/property.h"
#include "schedule/program.h"
#include "schedule/random_case.h"

namespace optimus {
namespace {

// Counts the partners that have started.
class Meetings {
 public:
  explicit Meetings(std::size_t num_devices) : num_devices_(num_devices) {}

  // Identifies the message or collective of an instruction: the k-th of its kind.
  using Key = std::tuple<int, int, int, std::vector<int>, int>;
  Key key_of(const Program& program, const Instruction& instruction) {
    const bool sends = instruction.op == Op::send || instruction.op == Op::send_copy;
    if (instruction.peer >= 0) {
      const int kind = instruction.op == Op::send_copy || instruction.op == Op::receive_copy ? 2
                       : instruction.is_backward                                             ? 1
                                                                                             : 0;
      const int from = sends ? program.device : instruction.peer,
                to = sends ? instruction.peer : program.device;
      return {from, to, kind, {}, counts_[{program.device, from, to, kind, {}}]++};
    }
    const Group& group = program.groups[static_cast<std::size_t>(instruction.group)];
    const int role = static_cast<int>(group.role);
    return {-1, -1, role, group.members, counts_[{program.device, -1, -1, role, group.members}]++};
  }
  void begin(const Key& key) { ++begun_[key]; }
  bool is_over(const Key& key) const {
    const auto& [from, to, kind, members, number] = key;
    const std::size_t all = from >= 0 ? 2 : members.empty() ? num_devices_ : members.size();
    return begun_.at(key) == all;
  }

 private:
  std::size_t num_devices_;
  std::map<std::tuple<int, int, int, int, std::vector<int>>, int> counts_;
  std::map<Key, std::size_t> begun_;
};

struct Walker {
  const Program* program;
  std::size_t next = 0;
  std::map<int, Meetings::Key> under_way{};
  std::map<Lane, int> last_on_lane{};
};

// Executes one instruction of one device; false if the device is blocked.
bool advance(Walker& walker, Meetings& meetings) {
  const Program& program = *walker.program;
  const Instruction& at = program.instructions[walker.next];
  const auto has_ended = [&](int index) {
    const auto found = walker.under_way.find(index);
    if (found == walker.under_way.end()) return true;
    if (!meetings.is_over(found->second)) return false;
    walker.under_way.erase(found);
    return true;
  };
  for (const int wait : program.waits(at))
    if (!has_ended(wait)) return false;
  const bool is_in_order = at.lane != Lane::transfer;
  if (const auto last = walker.last_on_lane.find(at.lane);
      is_in_order && last != walker.last_on_lane.end() && !has_ended(last->second))
    return false;
  const int index = static_cast<int>(walker.next++);
  walker.last_on_lane[at.lane] = index;
  if (at.peer >= 0 || at.group >= 0) {
    const Meetings::Key key = meetings.key_of(program, at);
    meetings.begin(key);
    walker.under_way[index] = key;
  }
  return true;
}

TEST(ListOrder, ProgramsOfAnyPlanTerminate) {
  EXPECT_TRUE(holds("programs in list order", 100, [] {
    auto [model, plan] = random_case();
    if (random_plan::pick(0, 1) == 1 && !is_asynchronous(plan.schedule) && !model.is_mixture())
      random_plan::enable_shard_copies(plan, random_plan::pick(1, 3));
    const std::vector<Program> programs = compile_all(plan, model);
    Meetings meetings(programs.size());
    std::vector<Walker> walkers;
    for (const Program& program : programs) walkers.push_back({&program});
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (Walker& walker : walkers)
        while (walker.next < walker.program->instructions.size() && advance(walker, meetings)) goes_on = true;
    }
    for (const Walker& walker : walkers)
      if (walker.next < walker.program->instructions.size())
        RC_FAIL(fmt::format("device {} waits forever at instruction {} of\n{}", walker.program->device,
                            walker.next, text(*walker.program)));
  }));
}

}  // namespace
}  // namespace optimus
