// Applies a policy (policy/policy.h) to a situation (policy/situation.h): decides whether to change the plan
// now, and to which plan. The same function decides in simulated runs (trials/trial.h) and in real ones.
// No side effects.
#pragma once

#include "policy/policy.h"
#include "policy/situation.h"

namespace optimus {

// Returns the policy's choice. If the current plan cannot run (its step time is 0), the policy chooses an
// option that can run, if there is one.
Choice choose(const Policy& policy, const Situation& situation);

}  // namespace optimus
