// PhaseMonitor: reports that training has entered a new phase, because the loss no longer falls or sequence
// lengths have changed. In a new phase, another plan may be the best even if no machine is slow. One thread
// at a time.
#pragma once

#include <optional>

#include "adapt/phase.h"
#include "adapt/plan_proposal.h"

namespace optimus {

class PhaseMonitor {
 public:
  void observe_loss(double loss) { plateau_.observe(loss); }
  // Reports once per run that the loss has stopped falling; otherwise returns nullopt. The controller does
  // not change the batch size, because that would change the training result.
  std::optional<StayDecision> take_plateau_report();
  // Reports that the cost of sequences has changed, and restarts the comparison with the current lengths.
  // Returns nullopt if there is no change.
  std::optional<StayDecision> observe_lengths(const LengthSum& lengths);
  // Called when the plan has changed.
  void reset_lengths() { lengths_ = {}; }

 private:
  LossPlateau plateau_;
  LengthMix lengths_;
  bool is_plateau_reported_ = false;
};

}  // namespace optimus
