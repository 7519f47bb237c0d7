// Simulates the lanes of one device for one step, as if all data from other stages arrived immediately. The
// results are the duration of each slot of the schedule, the part of each slot in which compute waits for the
// device's own communication, and the work after the last slot.
//
// The devices of a stage do the same work, so one device represents all of them. A slot takes the same time
// for every micro-batch except the first and the last. Therefore a program with two micro-batches is enough
// to predict a step with any number of micro-batches (simulate/pipeline.h).
#pragma once

#include <vector>

#include "cost/instruction_cost.h"
#include "schedule/order.h"
#include "simulate/instruction_time.h"

namespace optimus {

// Breakdown of time in seconds. `tensor`, `data` and `pipeline` are the times in which compute waits for that
// kind of communication.
struct TimeSplit {
  double compute = 0, tensor = 0, data = 0, pipeline = 0, bubble = 0, optimizer = 0, host = 0;
  TimeSplit& operator+=(const TimeSplit& other);
  friend TimeSplit operator*(TimeSplit split, double factor);
  double total() const { return compute + tensor + data + pipeline + bubble + optimizer + host; }
};

struct SlotTime {
  double seconds = 0;
  TimeSplit split;
};

struct StageTimes {
  // Indexed by chunk. The last backward pass is listed separately, because it overlaps with gradient
  // reductions.
  std::vector<SlotTime> first_forward, forward, backward, last_backward, weight, last_weight;
  SlotTime before_first_slot;  // host work before the first slot
  SlotTime before_gate;        // reductions that the last backward pass does not hide
  SlotTime after_gate;         // updates, and gathers of updated weights that the next step does not hide
};

// Simulates the lanes of one stage and returns the times of its slots. `order` is the order of the program's
// slots (schedule/order.h).
StageTimes simulate_lanes(const PricedProgram& program, const Order& order, const Software& software,
                          const Constants& constants);

// The times of all instructions in the same simulation. They are in seconds from the start of the slot or,
// outside the slots, from the start of the phase: before the first slot, before the step gate, or after it.
struct LaneTrace {
  std::vector<InstructionTime> before_first_slot, before_gate, after_gate;
  std::vector<std::vector<InstructionTime>> slots;
};
LaneTrace trace_lanes(const PricedProgram& program, const Order& order, const Software& software,
                      const Constants& constants);

}  // namespace optimus
