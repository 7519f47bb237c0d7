// The members of a run between two membership changes (a loss, a join or a departure).
#pragma once

#include <algorithm>
#include <vector>

namespace optimus {

// Rank r is the worker with id worker_ids[r]. The worker id of a process or thread never changes. Each
// membership change increments the generation.
struct Membership {
  int generation = 0;
  std::vector<int> worker_ids;
};

// Returns -1 if the worker is not a member.
inline int rank_of(const Membership& membership, int worker_id) {
  const auto it = std::find(membership.worker_ids.begin(), membership.worker_ids.end(), worker_id);
  return it == membership.worker_ids.end() ? -1 : static_cast<int>(it - membership.worker_ids.begin());
}

}  // namespace optimus
