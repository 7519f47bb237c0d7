// Lets all ranks agree after every step whether to continue, whether a plan was requested, and whether all
// ranks are prepared for it. Each rank contributes a StepVote. The combined result is available one step
// later, so no rank waits for it, and all ranks act on it after the same step.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "comm/comm.h"

namespace optimus {

struct StepVote {
  bool ends = false;          // this rank was asked to end the run
  std::int64_t asked = 0;     // number of plans requested, as far as this rank knows
  std::int64_t prepared = 0;  // number of plans that this rank has prepared or refused
  // A worker joins or leaves, so all ranks stop for a membership change (elastic/membership_change.h).
  bool changes_membership = false;
  int drained = -1;        // the rank that must leave; -1 if no rank must leave
  bool stays = true;       // this rank stays; combined: at least one rank that is not drained stays
  bool collects = false;   // the ranks' observations are collected (observation_tree.h)
  bool probes = false;     // all ranks probe for slow machines (probe.h)
  std::int64_t phase = 0;  // the step after which the newest decided phase begins (plan/phase.h)
};

// Used by one thread. Throws PeersLost.
class StepAgreement {
 public:
  // The world group must be connected in every epoch.
  StepAgreement(Comm& comm, Seconds timeout);
  ~StepAgreement();
  StepAgreement(const StepAgreement&) = delete;

  // Called after a step. Returns the combined result of the previous step. The run ends, or its membership
  // changes, if any rank votes for it. `asked` is the maximum and `prepared` the minimum over all ranks.
  StepVote take();
  void submit(const StepVote& own);
  // Called when the run has failed. Drops the operation in flight.
  void release() { in_flight_.reset(); }

 private:
  // The votes of all ranks, reduced by maximum. Values that need a minimum are stored negated. Ranks are
  // numbered from 1, so that 0 means no rank.
  struct ReducedVote {
    std::int64_t ends, asked, minus_prepared, changes_membership, drained;
    std::int64_t last_staying, minus_first_staying;
    std::int64_t collects, probes, phase;
  };

  Comm& comm_;
  const Seconds timeout_;
  const at::Tensor votes_;  // a ReducedVote; the operation in flight shares it
  std::unique_ptr<Pending> in_flight_;
};

}  // namespace optimus
