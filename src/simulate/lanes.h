// Simulates the lanes of one device for one step, as if all data from other stages arrived immediately: the
// duration of each slot of the schedule, the part of it in which compute waits for the device's own
// communication, and the work after the last slot.
//
// The devices of a stage do the same work, so one device represents all of them. A slot takes the same time
// for every micro-batch except the first and the last. Therefore a program with two micro-batches suffices
// to predict a step with any number of them (simulate/pipeline.h).
#pragma once

#include <vector>

#include "cost/instruction_cost.h"
#include "schedule/order.h"
#include "simulate/instruction_time.h"

namespace optimus {

// Breakdown of time in seconds. tensor, data, pipeline: compute waits for that kind of communication.
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
  // Indexed by chunk. The last backward overlaps with the reduction of gradients.
  std::vector<SlotTime> first_forward, forward, backward, last_backward, weight, last_weight;
  SlotTime before_first_slot;  // host work before the first slot
  SlotTime before_gate;        // reductions that the last backward does not hide
  SlotTime after_gate;         // updates, and gathers of updated weights that the next step does not hide
};

// Simulates the lanes of one stage and returns the times of its slots. `order` is the order of the program's
// slots (schedule/order.h).
StageTimes simulate_lanes(const PricedProgram& program, const Order& order, const Software& software,
                          const Constants& constants);

// Every instruction of the same simulation, in seconds from the start of its slot or of the phase before
// the first slot, before the gate, or after the gate.
struct LaneTrace {
  std::vector<InstructionTime> before_first_slot, before_gate, after_gate;
  std::vector<std::vector<InstructionTime>> slots;
};
LaneTrace trace_lanes(const PricedProgram& program, const Order& order, const Software& software,
                      const Constants& constants);

}  // namespace optimus
