// Small collectives between the ranks of a run, outside the computation of a step. All ranks must call the
// functions in the same order. Every collective throws PeersLost if other ranks do not respond.
#pragma once

#include <string>

#include "comm/comm.h"

namespace optimus {

class Agreement {
 public:
  // `comm` is null if this rank is alone. `world` is a connected group of the participating ranks. If the
  // group has no members, all ranks participate.
  Agreement(Comm* comm, Group world, Seconds timeout)
      : comm_(comm), world_(std::move(world)), timeout_(timeout) {}
  bool is_alone() const { return size() == 1; }
  // The index of this rank among the participating ranks.
  int rank_index() const;
  int size() const {
    if (comm_ == nullptr) return 1;
    return world_.members.empty() ? comm_->size() : static_cast<int>(world_.members.size());
  }
  Comm* comm() const { return comm_; }
  Seconds timeout() const { return timeout_; }
  // Returns whether `value` is true on any rank.
  bool any(bool value, const char* description) const;
  // Returns the first rank's text on all ranks. The texts of other ranks are ignored. The text must be
  // shorter than 4 KiB.
  std::string value_of_first_rank(const std::string& value, const char* description) const;
  double sum(double value, const char* description) const;

 private:
  Comm* comm_;
  Group world_;
  Seconds timeout_;
};

}  // namespace optimus
