// A plan that the run itself wants, and what it expects of it.
#pragma once

#include <string>
#include <vector>

#include "observe/decisions.h"
#include "plan/plan.h"

namespace optimus {

struct PlanWish {
  Plan plan;
  std::string why;            // what was found, for people
  bool is_placed = false;     // its devices are ranks; else they are dealt so that least moves
  double predicted_gain = 0;  // of steps a second: 0.38
  double payback_steps = 0;   // until the pause is won back, as predicted
  std::string cause{};        // word_of(Cause); empty: none is left
  std::vector<WeighedPlan> alternatives{};
};

}  // namespace optimus
