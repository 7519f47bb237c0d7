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

class InstructionLog {
 public:
  // Times are counted from here, or from the last call of begin_times. spans: [instruction] the first of those that are timed as one, one
  // behind the other, with nothing to wait for between them; -1: not wanted. Empty: each by itself.
  explicit InstructionLog(at::Device device, std::vector<int> spans = {});
  // Waits for the device.
  void begin_times();
  double elapsed() const;  // by the host's clock

  void begin(std::size_t instruction);
  // Its call has returned. Unless something of it is under way that is its end.
  void executed(std::size_t instruction, Pending* under_way);
  // What was under way was waited for, and its result is where it belongs.
  void end(std::size_t instruction, const Pending& ended);

  // Of the instructions since the last call, in the order of the program. A span's time is its first instruction's; the others stand at its
  // end and take none. Waits for the device.
  std::vector<InstructionTime> take();

 private:
  using Clock = Deadline::Clock;
  struct Mark {
    Clock::time_point time;
    std::unique_ptr<c10::Event> event;  // on a device that works behind the host
  };
  struct Entry {
    std::optional<Mark> begin, end;
  };
  Mark now();
  double seconds(const Mark& mark) const;
  void keep(Mark& mark);
  // -1: not wanted.
  int first_of(std::size_t instruction) const {
    return spans_.empty() ? static_cast<int>(instruction) : spans_[instruction];
  }
  bool is_last(std::size_t instruction) const {
    return instruction + 1 >= spans_.size() || spans_[instruction + 1] != spans_[instruction];
  }

  const at::Device device_;
  const std::vector<int> spans_;
  Mark origin_;
  std::vector<Entry> entries_;                       // [instruction]
  std::vector<std::unique_ptr<c10::Event>> unused_;  // of steps before
};

}  // namespace optimus
