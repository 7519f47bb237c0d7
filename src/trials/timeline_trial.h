// Trials (trials/trial.h) made from timelines of conditions and from node traces.
#pragma once

#include "adapt/condition_timeline.h"
#include "adapt/respond.h"
#include "trials/replay.h"
#include "trials/trial.h"

namespace optimus {

// A trial of a run that begins with `plan`. The modes are the responses to every set of conditions and
// losses in the timeline. A plan made for certain nodes runs only while these are present. Steps that a
// loss undoes in plans without a second copy of the state are not modeled. Throws UserError for nodes that
// the demand's cluster does not have. If `timer` is not null, it receives the longest time that the
// responses to one set took to compute.
struct ResponseTimer {
  double (*clock)() = nullptr;  // returns seconds; null: not measured
  double max_seconds = 0;
};
TrialCase trial_of(const ConditionTimeline& timeline, const Demand& demand, const Plan& plan,
                   const RecoveryCosts& costs, const ResponseLimits& limits = {},
                   ResponseTimer* timer = nullptr);

// A trial of a node trace. Modes are numbers of nodes in use.
TrialCase trial_of(const ReplayCase& replay_case, int devices_per_node);

}  // namespace optimus
