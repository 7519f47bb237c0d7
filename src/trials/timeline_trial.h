// Creates simulated runs (trials/trial.h) from timelines of conditions and from node traces.
#pragma once

#include "adapt/condition_timeline.h"
#include "adapt/respond.h"
#include "trials/replay.h"
#include "trials/trial.h"

namespace optimus {

// Returns a trial for a run that begins with `plan`. The modes are the responses to each set of conditions
// and losses in the timeline. A plan for certain nodes can run only while these nodes are available. Steps
// that a loss undoes under plans without a second copy of the state are not modeled. Throws UserError if a
// node does not exist in the demand's cluster. If `timer` is not null, it receives the longest time that it
// took to compute the responses to one set.
struct ResponseTimer {
  double (*clock)() = nullptr;  // returns seconds; null: not measured
  double max_seconds = 0;
};
TrialCase trial_of(const ConditionTimeline& timeline, const Demand& demand, const Plan& plan,
                   const RecoveryCosts& costs, const ResponseLimits& limits = {},
                   ResponseTimer* timer = nullptr);

// Returns a trial for a node trace. Each mode is a number of nodes in use.
TrialCase trial_of(const ReplayCase& replay_case, int devices_per_node);

}  // namespace optimus
