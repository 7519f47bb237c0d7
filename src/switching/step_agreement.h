// What all ranks of a run agree on after every step: whether to go on, whether a plan is asked for, whether all are prepared for it.
// Each says its word; what all have said is known one step later, so nobody waits for it, and all ranks act after the same step.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "comm/comm.h"

namespace optimus {

struct StepWord {
  bool ends = false;          // asked to end
  std::int64_t asked = 0;     // how many plans were asked for, as far as this rank knows
  std::int64_t prepared = 0;  // how many plans it has prepared, or refused
  bool meets = false;         // somebody comes or leaves: all are to regroup (elastic/regroup.h)
  int drained = -1;           // a rank that is to leave
  bool stays = true;          // it does not leave; of all: somebody stays who is not drained
  bool collects = false;      // what ranks have seen is to be collected (observation_tree.h)
  bool probes = false;        // all are to look which machines are slow (probe.h)
  std::int64_t phase = 0;     // behind which step the newest phase begins that was decided (plan/phase.h)
};

// One thread. Throws PeersLost.
class StepAgreement {
 public:
  // Everybody is connected, in every epoch.
  StepAgreement(Comm& comm, Seconds patience);
  ~StepAgreement();

  // After a step: what all said after the step before. It ends when one rank wants that; the most that any knows to be asked for; the
  // fewest that any has prepared. All meet when one wants to.
  StepWord take();
  void say(const StepWord& own);
  // When the run has failed: forgets what is under way.
  void let_go() { under_way_.reset(); }

 private:
  Comm& comm_;
  const Seconds patience_;
  at::Tensor words_;
  std::unique_ptr<Pending> under_way_;
};

}  // namespace optimus
