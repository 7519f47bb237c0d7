// PendingProposal: a proposal that has been made and is neither adopted nor refused nor cancelled yet. Plain
// data.
#pragma once

#include <vector>

#include "adapt/plan_proposal.h"
#include "policy/condition.h"

namespace optimus {

struct PendingProposal {
  std::vector<Condition> conditions{};  // that the plan answers
  double pause = 0;                     // predicted pause of the switch, in seconds
  double step_seconds = 0;              // when it was proposed; 0: not known
  bool is_provisional = false;
  double proposed_at = 0;    // time of the controller's clock
  int num_observations = 0;  // since then
};

// The state of a provisional proposal. found: conditions that the detector has found; provisional: conditions
// that only the early detector has found.
ProvisionalStatus provisional_status(const PendingProposal& pending, const std::vector<Condition>& found,
                                     const std::vector<Condition>& provisional, double now);

}  // namespace optimus
