// Explains results: one clause for why an alternative is worse, and one sentence for why a demand cannot be
// met, with the smallest change that would help.
#pragma once

#include <string>

#include "search/evaluate.h"

namespace optimus {

// For example "bubble 12.1 % instead of 3.0 %". Both plans must fit into memory.
std::string why_slower(const Demand& demand, const ClusterView& cluster_view, const Plan& best,
                       const StepPrediction& best_step, const Plan& other, const StepPrediction& other_step);
std::string why_unfit(const PeakMemory& peak_memory);  // "does not fit: needs 93.1 GiB, limit 80.0 GiB"

// For example "… does not fit into the memory of …; try 96 devices (32 more)". Searches for the changes that
// it suggests.
std::string why_impossible(const Demand& demand, const ClusterView& cluster_view);

}  // namespace optimus
