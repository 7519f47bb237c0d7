// One device's step with its lanes, as if everything that it waits for from other stages were there at once: how long each
// slot of the schedule takes, what of that is waiting for its own communication, and what comes behind the last slot.
//
// Devices of a stage do the same, so one stands for all; the same slot takes the same time for every micro-batch but the
// first and the last. So a program of two micro-batches tells what a step of any number needs (simulate/pipeline.h).
#pragma once

#include <vector>

#include "cost/instruction_cost.h"
#include "schedule/order.h"
#include "simulate/instruction_time.h"

namespace optimus {

// Where time goes. waits_*: compute stands still for that kind of communication.
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
  // [chunk]. The last backward overlaps with the reduction of gradients.
  std::vector<SlotTime> first_forward, forward, backward, last_backward, weight, last_weight;
  SlotTime before;       // host work before the first slot
  SlotTime before_gate;  // reductions that the last backward did not hide
  SlotTime after_gate;   // update, and the gather of updated weights as far as the next step does not hide it
};

// `order`: the slots of the program (schedule/order.h).
StageTimes run_lanes(const PricedProgram& program, const Order& order, const Software& software,
                     const Constants& constants);

// Every instruction of the same run, in seconds from the begin of its slot (or of what comes before the first slot, before the
// gate, behind it).
struct LaneTrace {
  std::vector<InstructionTime> before, before_gate, after_gate;
  std::vector<std::vector<InstructionTime>> slots;
};
LaneTrace trace_lanes(const PricedProgram& program, const Order& order, const Software& software,
                      const Constants& constants);

}  // namespace optimus
