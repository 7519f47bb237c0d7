// What the ranks of a run tell each other beside a step's work: small things, all ranks at the same place of their program. Throw
// PeersLost when others do not answer.
#pragma once

#include <string>

#include "comm/comm.h"

namespace optimus {

class Agreement {
 public:
  // comm: null, this rank is alone. world: connected, those who are asked.
  Agreement(Comm* comm, Group world, Seconds patience)
      : comm_(comm), world_(std::move(world)), patience_(patience) {}
  bool is_alone() const { return size() == 1; }
  // The place of this rank among those who are asked.
  int place() const;
  int size() const {
    if (comm_ == nullptr) return 1;
    return world_.members.empty() ? comm_->size() : static_cast<int>(world_.members.size());
  }
  Comm* comm() const { return comm_; }
  Seconds patience() const { return patience_; }
  // Whether any rank says so.
  bool any(bool mine, const char* what) const;
  // What the first says; the others' words do not count. At most a few kilobytes.
  std::string from_first(const std::string& mine, const char* what) const;
  double sum(double mine, const char* what) const;

 private:
  Comm* comm_;
  Group world_;
  Seconds patience_;
};

}  // namespace optimus
