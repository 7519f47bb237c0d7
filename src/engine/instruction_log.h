// Records when each instruction of a step began and ended on this device. The engine fills it only while
// Engine::instruction_log is set; otherwise the cost is one comparison. CPU times come from the steady clock.
// CUDA times come from events in the stream, which are reused. The simulator's predictions have the same form
// (simulate/instruction_time.h). run/profile.h and run/rank_monitor.h use the times.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "simulate/instruction_time.h"

namespace optimus {

// Specifies which instructions are timed, and how. If both members are empty, every instruction is timed from
// its start to its end on this device.
struct TimingSelection {
  // [instruction]: index of the first instruction of the span that contains this instruction; -1 if it is not
  // timed on this device. A span is a sequence of instructions without waits between them. It is timed as a
  // whole.
  std::vector<int> spans;
  // [instruction]: whether to record the duration of the transfer itself (Pending::duration). Used for
  // messages and collectives.
  std::vector<bool> transfer;
};

class InstructionLog {
 public:
  // Times are relative to the construction of this object or to the last call of begin_times().
  explicit InstructionLog(at::Device device, TimingSelection selection = {});
  // Makes the current time the origin of all times. Synchronizes with the device.
  void begin_times();
  double elapsed() const;  // seconds since the origin, by the host's clock

  void begin(std::size_t instruction);
  // Called when the host has executed the instruction. The instruction ends here unless it has started an
  // outstanding operation, `pending`.
  void mark_executed(std::size_t instruction, Pending* pending);
  // Called when the outstanding operation of an instruction has completed and its result is in place.
  void end(std::size_t instruction, std::unique_ptr<Pending> ended);

  // Returns the times of the instructions since the last call, in program order. The time of a span is
  // attributed to its first instruction. The other instructions of the span have its end time and zero
  // duration. A transfer begins when the host starts it, and is omitted if its duration is unknown.
  // Synchronizes with the device.
  std::vector<InstructionTime> take();

 private:
  using Clock = Deadline::Clock;
  struct Mark {
    Clock::time_point time;
    std::unique_ptr<c10::Event> event;  // null on the CPU
  };
  struct Entry {
    std::optional<Mark> begin, end;
    std::unique_ptr<Pending> transfer;  // the operation, until its duration is known
    std::optional<Seconds> duration;
  };
  Mark now();
  double seconds(const Mark& mark) const;
  void recycle(Mark& mark);
  void add_span(std::size_t first, std::vector<InstructionTime>& times) const;
  bool is_transfer(std::size_t instruction) const {
    return !selection_.transfer.empty() && selection_.transfer[instruction];
  }
  // Returns the index of the first instruction of the span that contains `instruction`, or -1 if it is not
  // timed.
  int first_of(std::size_t instruction) const {
    return selection_.spans.empty() ? static_cast<int>(instruction) : selection_.spans[instruction];
  }
  bool is_last(std::size_t instruction) const {
    const std::vector<int>& spans = selection_.spans;
    return instruction + 1 >= spans.size() || spans[instruction + 1] != spans[instruction];
  }

  const at::Device device_;
  const TimingSelection selection_;
  Mark origin_;
  std::vector<Entry> entries_;                            // [instruction]
  std::vector<std::unique_ptr<c10::Event>> free_events_;  // from earlier steps, for reuse
};

}  // namespace optimus
