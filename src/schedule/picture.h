// Draws the step in the terminal: one row per stage, time to the right, every forward one unit, every
// backward two.
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
  double busy = 0;  // per stage; all stages are equally busy
  // Idle time over busy time: (p - 1) / m for 1F1B.
  double bubble() const { return (length - busy) / busy; }
};

// The duration of a unit of work, equal for all stages.
double unit_time(Work work);

SlotTimes unit_times(Schedule schedule, int num_stages, int num_microbatches, int num_chunks);

// At most `columns` wide. A longer timeline is cut, with a note.
std::string draw_timeline(const Plan& plan, int columns);

}  // namespace optimus
