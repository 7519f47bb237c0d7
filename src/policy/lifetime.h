// How long a condition will last, from published statistics of such conditions and its age. Pure.
#pragma once

#include "policy/condition.h"

namespace optimus {

// A log-normal duration in seconds. The means are published ones: 10 min for a slow device or host, 24 min
// for a congested network (Greyhound, ATC'25). The spread is chosen so that one in a hundred lasts 8 (device)
// to 20 (network) times the mean; tens of seconds to 10 h were observed. Conditions of the plan or the data
// (heavy stages, uneven lengths, data loading) do not end.
struct Lifetime {
  double median = 1, spread = 1;
  bool is_endless = false;
};
Lifetime usual_lifetime(Cause cause);

// Expected remaining seconds of a condition that is `age` seconds old, at most `horizon`.
double expected_rest(const Lifetime& lifetime, double age, double horizon);

// The probability that it ends in the next second.
double chance_to_end(const Lifetime& lifetime, double age);

}  // namespace optimus
