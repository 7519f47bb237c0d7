// Who takes part in a run, until somebody is lost, comes or leaves.
#pragma once

#include <vector>

namespace optimus {

// Rank r is whoever has seat seats[r], a number that a process or thread of the run keeps for life. Numbers of generations rise.
struct Membership {
  int generation = 0;
  std::vector<int> seats;
};

}  // namespace optimus
