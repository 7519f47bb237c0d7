// The agreement of all ranks after every step: whether to continue, whether a plan was requested, whether
// all ranks are prepared for it. Each rank contributes a StepVote; the combined result is available one
// step later, so no rank waits for it, and all ranks act after the same step.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "comm/comm.h"

namespace optimus {

struct StepVote {
  bool ends = false;          // whether this rank is asked to end
  std::int64_t asked = 0;     // number of plans requested that this rank knows of
  std::int64_t prepared = 0;  // number of plans that this rank has prepared or refused
  // A worker joins or leaves, so all ranks should stop for a membership change
  // (elastic/membership_change.h).
  bool changes_membership = false;
  int drained = -1;        // a rank that must leave; -1 if none
  bool stays = true;       // this rank does not leave; combined: some rank stays that is not drained
  bool collects = false;   // the ranks' observations should be collected (observation_tree.h)
  bool probes = false;     // all ranks should probe for slow machines (probe.h)
  std::int64_t phase = 0;  // the step after which the newest decided phase begins (plan/phase.h)
};

// One thread. Throws PeersLost.
class StepAgreement {
 public:
  // The world group must be connected in every epoch.
  StepAgreement(Comm& comm, Seconds timeout);
  ~StepAgreement();

  // Called after a step: returns the combined votes of the previous step. `ends`, `changes_membership`,
  // `collects` and `probes` are set if any rank sets them; `asked` is the maximum, `prepared` the minimum
  // over all ranks.
  StepVote take();
  void submit(const StepVote& own);
  // When the run has failed: drops the operation in flight.
  void release() { in_flight_.reset(); }

 private:
  Comm& comm_;
  const Seconds timeout_;
  at::Tensor votes_;
  std::unique_ptr<Pending> in_flight_;
};

}  // namespace optimus
