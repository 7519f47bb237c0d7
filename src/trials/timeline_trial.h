// Trials (trials/trial.h) made from timelines of conditions and from node traces.
#pragma once

#include "adapt/respond.h"
#include "adapt/time_line.h"
#include "trials/replay.h"
#include "trials/trial.h"

namespace optimus {

// A trial of a run that begins with `plan`. The modes are the responses to every set of conditions and
// losses in the timeline. A plan made for certain nodes runs only while these are present. Steps that a
// loss undoes in plans without a second copy of the state are not modelled. Throws UserError for nodes that
// the demand's cluster does not have. `timed`, if not null, receives the longest time that computing the
// responses to one set took.
struct TimedResponses {
  double (*clock)() = nullptr;  // returns seconds; null: not measured
  double longest = 0;
};
TrialCase trial_of(const TimeLine& line, const Demand& demand, const Plan& plan, const RecoveryCosts& costs,
                   const ResponseLimits& limits = {}, TimedResponses* timed = nullptr);

// A trial of a node trace. Modes are numbers of nodes in use.
TrialCase trial_of(const ReplayCase& replay_case, int devices_per_node);

}  // namespace optimus
