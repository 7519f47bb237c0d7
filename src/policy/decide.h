// Applies a policy (policy/policy.h) to a situation (policy/situation.h): whether to change the plan now, and
// to which. The same function decides in simulated runs (trials/trial.h) and in real ones. Pure.
#pragma once

#include "policy/policy.h"
#include "policy/situation.h"

namespace optimus {

// If the present plan cannot run (its step takes 0 seconds), an option that can run is chosen, unless there
// is none.
Choice choose(const Policy& policy, const Situation& situation);

}  // namespace optimus
