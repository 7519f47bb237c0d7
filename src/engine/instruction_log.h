// When each instruction of a step began and ended on this device. The engine writes it while somebody has asked for it
// (Engine::instruction_log); otherwise it costs a comparison. On processors by the steady clock, on CUDA by events in the stream, which
// are kept and used again. What the simulator predicts has the same form (simulate/instruction_time.h). Not what becomes of the times:
// run/profile.h, run/watching.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "simulate/instruction_time.h"

namespace optimus {

// Which instructions are timed, and how. None named: each, from its begin to its end on this device.
struct WantedTimes {
  // [instruction] the first of those that are timed as one, one behind the other, with nothing to wait for between them; -1: not on this device.
  std::vector<int> spans;
  // [instruction] a message or collective whose time is what carried it took (Pending::took).
  std::vector<bool> carried;
};

class InstructionLog {
 public:
  // Times are counted from here, or from the last call of begin_times.
  explicit InstructionLog(at::Device device, WantedTimes wanted = {});
  // Waits for the device.
  void begin_times();
  double elapsed() const;  // by the host's clock

  void begin(std::size_t instruction);
  // Its call has returned. Unless something of it is under way that is its end.
  void executed(std::size_t instruction, Pending* under_way);
  // What was under way was waited for, and its result is where it belongs.
  void end(std::size_t instruction, std::unique_ptr<Pending> ended);

  // Of the instructions since the last call, in the order of the program. A span's time is its first instruction's; the others stand at its
  // end and take none. What was carried begins when the host began it; where nobody knows what it took it is left out. Waits for the device.
  std::vector<InstructionTime> take();

 private:
  using Clock = Deadline::Clock;
  struct Mark {
    Clock::time_point time;
    std::unique_ptr<c10::Event> event;  // on a device that works behind the host
  };
  struct Entry {
    std::optional<Mark> begin, end;
    std::unique_ptr<Pending> carried;  // until it is known what it took
    std::optional<Seconds> took;
  };
  Mark now();
  double seconds(const Mark& mark) const;
  void keep(Mark& mark);
  void add_span(std::size_t first, std::vector<InstructionTime>& times) const;
  bool is_carried(std::size_t instruction) const {
    return !wanted_.carried.empty() && wanted_.carried[instruction];
  }
  // -1: not wanted.
  int first_of(std::size_t instruction) const {
    return wanted_.spans.empty() ? static_cast<int>(instruction) : wanted_.spans[instruction];
  }
  bool is_last(std::size_t instruction) const {
    const std::vector<int>& spans = wanted_.spans;
    return instruction + 1 >= spans.size() || spans[instruction + 1] != spans[instruction];
  }

  const at::Device device_;
  const WantedTimes wanted_;
  Mark origin_;
  std::vector<Entry> entries_;                       // [instruction]
  std::vector<std::unique_ptr<c10::Event>> unused_;  // of steps before
};

}  // namespace optimus
