// PhaseMonitor: reports that the run has entered another phase of training. No machine is at fault then, but
// another plan may be the best. One thread at a time.
#pragma once

#include <optional>

#include "adapt/phase.h"
#include "adapt/plan_proposal.h"

namespace optimus {

class PhaseMonitor {
 public:
  void observe_loss(double loss) { plateau_.observe(loss); }
  // The loss has stopped falling: once per run. The controller does not change the batch, because that would
  // change what is learned.
  std::optional<StayDecision> take_plateau();
  // The costs of sequences have changed. The monitor then starts again with the present lengths.
  std::optional<StayDecision> observe_lengths(const LengthSum& lengths);
  // The plan has changed.
  void reset_lengths() { lengths_ = {}; }

 private:
  LossPlateau plateau_;
  LengthMix lengths_;
  bool is_plateau_reported_ = false;
};

}  // namespace optimus
