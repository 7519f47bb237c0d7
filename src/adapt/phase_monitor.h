// PhaseMonitor: reports that the training has entered another phase (the loss no longer falls, or sequence
// lengths have changed). No machine is slow then, but another plan may be the best. One thread at a time.
#pragma once

#include <optional>

#include "adapt/phase.h"
#include "adapt/plan_proposal.h"

namespace optimus {

class PhaseMonitor {
 public:
  void observe_loss(double loss) { plateau_.observe(loss); }
  // Reports once per run that the loss has stopped falling; empty otherwise. The controller does not change
  // the batch, because that would change what is learned.
  std::optional<StayDecision> take_plateau();
  // Reports that the cost of sequences has changed, and restarts the comparison with the present lengths;
  // empty if there is no change.
  std::optional<StayDecision> observe_lengths(const LengthSum& lengths);
  // Called when the plan has changed.
  void reset_lengths() { lengths_ = {}; }

 private:
  LossPlateau plateau_;
  LengthMix lengths_;
  bool is_plateau_reported_ = false;
};

}  // namespace optimus
