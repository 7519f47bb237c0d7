// PendingProposal: a proposal that has been made but not yet adopted, refused or cancelled. Plain data.
#pragma once

#include <vector>

#include "adapt/plan_proposal.h"
#include "policy/condition.h"

namespace optimus {

struct PendingProposal {
  std::vector<Condition> conditions{};  // the conditions that the plan answers
  double pause = 0;                     // predicted pause of the switch, in seconds
  double step_seconds = 0;              // step time when it was proposed; 0 if unknown
  bool is_provisional = false;
  double proposed_at = 0;    // by the controller's clock
  int num_observations = 0;  // number of observations since then
};

// Returns the state of a provisional proposal. `detected` contains the conditions that the detector has
// found, `provisional` those that only the early detector has found.
ProvisionalStatus provisional_status(const PendingProposal& pending, const std::vector<Condition>& detected,
                                     const std::vector<Condition>& provisional, double now);

}  // namespace optimus
