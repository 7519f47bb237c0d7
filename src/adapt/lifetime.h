// How long a condition will go on, from what is published about such conditions and how old it is.
#pragma once

#include "adapt/condition.h"

namespace optimus {

// Log-normal lengths, seconds. Means are published ones: a slow device or host 10 min, a congested network 24 min (Greyhound, ATC'25);
// the spread is chosen so that one in a hundred lasts 8 (device) to 20 (network) times the mean: tens of seconds to 10 h were seen.
// What comes with the plan or the data (heavy stages, uneven lengths, data loading) stays.
struct Lifetime {
  double median = 1, spread = 1;
  bool is_endless = false;
};
Lifetime usual_lifetime(Cause cause);

// Of a condition that is `age` seconds old: seconds that it has still to go, on average, at most `horizon`.
double expected_rest(const Lifetime& lifetime, double age, double horizon);

// The chance that it ends in the next second.
double chance_to_end(const Lifetime& lifetime, double age);

}  // namespace optimus
