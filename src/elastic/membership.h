// Who takes part in a run, until somebody is lost, comes or leaves.
#pragma once

#include <algorithm>
#include <vector>

namespace optimus {

// Rank r is whoever has seat seats[r], a number that a process or thread of the run keeps for life. Numbers of generations rise.
struct Membership {
  int generation = 0;
  std::vector<int> seats;
};

// -1: it is not there.
inline int rank_of(const Membership& membership, int seat) {
  const auto found = std::find(membership.seats.begin(), membership.seats.end(), seat);
  return found == membership.seats.end() ? -1 : static_cast<int>(found - membership.seats.begin());
}

}  // namespace optimus
