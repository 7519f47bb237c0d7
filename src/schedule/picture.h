// Draws a step in the terminal, with one row per stage and time running to the right. Every forward pass
// takes one unit of time, every backward pass two.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "schedule/order.h"

namespace optimus {

struct SlotTimes {
  std::vector<Order> orders;               // [stage]
  std::vector<std::vector<double>> start;  // [stage][slot]
  double length = 0;
  double busy = 0;  // busy time per stage; equal for all stages
  // Idle time relative to busy time. This is (p - 1) / m for 1F1B with p stages and m micro-batches.
  double bubble() const { return (length - busy) / busy; }
};

// The duration of a slot in units, equal for all stages.
double unit_time(Work work);

SlotTimes unit_times(Schedule schedule, int num_stages, int num_microbatches, int num_chunks);

// The drawing is at most `columns` wide. A longer timeline is truncated, and a note is added.
std::string draw_timeline(const Plan& plan, int columns);

}  // namespace optimus
