// Predicts how much longer a condition (a slow device, host or network) will last, from its age and from
// published statistics. No side effects.
#pragma once

#include "policy/condition.h"

namespace optimus {

// The log-normal distribution of a condition's duration in seconds. The means are published: 10 min for a
// slow device or host, 24 min for a congested network (Greyhound, ATC'25). The spread is chosen so that one
// condition in a hundred lasts 8 (device) to 20 (network) times the mean. Observed durations range from tens
// of seconds to 10 h. Conditions that are caused by the plan or the data (heavy stages, uneven lengths, data
// loading) do not end on their own.
struct Lifetime {
  double median = 1, spread = 1;
  bool is_endless = false;
};
Lifetime usual_lifetime(Cause cause);

// Expected remaining seconds of a condition that is `age` seconds old, limited to `horizon`.
double expected_remaining_seconds(const Lifetime& lifetime, double age, double horizon);

// The probability that a condition of this age ends within the next second.
double chance_to_end(const Lifetime& lifetime, double age);

}  // namespace optimus
