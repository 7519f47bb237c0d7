// Trials (trials/trial.h) of time lines of conditions and of traces of nodes.
#pragma once

#include "adapt/respond.h"
#include "adapt/time_line.h"
#include "trials/replay.h"
#include "trials/trial.h"

namespace optimus {

// The run begins in `plan`; modes are the answers to every set of conditions and losses that comes up. A plan that was made for some nodes
// runs while these are there; what a loss undoes of a plan without a second copy of its state is left out. Throws UserError for places that the demand's cluster has not. `timed`, where given, gets the seconds of
// the slowest set of answers, by `clock`.
struct TimedResponses {
  double (*clock)() = nullptr;  // seconds; none: not measured
  double longest = 0;
};
TrialCase trial_of(const TimeLine& line, const Demand& demand, const Plan& plan, const RecoveryCosts& costs,
                   const ResponseLimits& limits = {}, TimedResponses* timed = nullptr);

// Modes are numbers of nodes in use.
TrialCase trial_of(const ReplayCase& one, int devices_per_node);

}  // namespace optimus
