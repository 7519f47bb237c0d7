// Why: one clause why an alternative loses, and one sentence why a demand cannot be met with the nearest thing that would work.
#pragma once

#include <string>

#include "search/search.h"

namespace optimus {

// "bubble 12.1 % instead of 3.0 %". Both fit.
std::string why_slower(const Demand& demand, const Ground& ground, const Plan& best,
                       const StepPrediction& best_step, const Plan& other, const StepPrediction& other_step);
std::string why_unfit(const Fill& fill);  // "does not fit: 93.1 GiB of 80.0 GiB"

// "… does not fit in memory …; it would fit on 96 devices". Looks for what would work by searching.
std::string why_impossible(const Demand& demand, const Ground& ground);

}  // namespace optimus
