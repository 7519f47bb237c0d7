// Applies a policy (adapt/policy.h) to a situation (adapt/situation.h): whether to change the plan now, and
// to which. The same function decides in simulated runs (trials/trial.h) and in real ones. Pure.
#pragma once

#include "adapt/policy.h"
#include "adapt/situation.h"

namespace optimus {

// If the present plan cannot run (its step takes 0 seconds), an option that can run is chosen, unless there
// is none.
Choice choose(const Policy& policy, const Situation& situation);

}  // namespace optimus
